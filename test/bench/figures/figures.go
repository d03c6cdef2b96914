// Package figures holds what a run of the benchmark measured, and checks it against promises.
//
// It owns the JSON form of a run and the form of the tables in SPECIFICATION.md. It never measures anything. The
// commands test/bench and test/bench/spec call it.
package figures

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"time"
)

// Sides maps a side (floor, null, kubelet, nodelet) to its measures, and each measure to its samples. The unit is part
// of the measure's name: "create to Ready, one at a time, ms".
type Sides map[string]map[string][]float64

// Record is one run of the benchmark.
type Record struct {
	// Run is the kind of run: pods, throughput, storage, or probes.
	Run string `json:"run"`
	// Began is when the run began.
	Began time.Time `json:"began"`
	// Version is nodelet's version; its end is the abbreviated commit. Its beginning is the version of Kubernetes, which
	// the control plane and the kubelet have as well.
	Version string `json:"version"`
	// Kernel is the release of the kernel, CPUs the number of CPUs.
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	Sides  Sides  `json:"sides"`
}

// Load reads a record that Save wrote.
func Load(path string) (*Record, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read benchmark record: %w", err)
	}
	var r Record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("parse benchmark record %s: %w", path, err)
	}
	if r.Run == "" || len(r.Sides) == 0 {
		return nil, fmt.Errorf("parse benchmark record %s: no field run or sides; write it with \"test/bench -json\"", path)
	}
	return &r, nil
}

// Save writes the record. Samples are rounded to a thousandth, because more is noise.
func (r *Record) Save(path string) error {
	for _, measures := range r.Sides {
		for _, samples := range measures {
			for i, s := range samples {
				samples[i] = math.Round(s*1000) / 1000
			}
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Note adds a sample.
func (s Sides) Note(side, measure string, value float64) {
	if s[side] == nil {
		s[side] = map[string][]float64{}
	}
	s[side][measure] = append(s[side][measure], value)
}

const nodelet = "nodelet"

// Names returns the sides that were measured, nodelet last.
func (s Sides) Names() []string {
	all := []string{"floor", "null", "kubelet", nodelet}
	return slices.DeleteFunc(all, func(side string) bool { return s[side] == nil })
}

// Measures returns the names of all measures of all sides, sorted.
func (s Sides) Measures() []string {
	names := map[string]bool{}
	for _, measures := range s {
		for name := range measures {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Quantile returns the q-quantile of samples: the value at the share q of the way from the least sample to the
// greatest one, in steps of one sample. Between two samples it is interpolated, so the median (0.5) of an even number
// is the mean of the two in the middle. Samples are not empty.
func Quantile(samples []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	below, part := math.Modf(q * float64(len(s)-1))
	lower := s[int(below)]
	if part == 0 {
		return lower
	}
	return lower + part*(s[int(below)+1]-lower)
}

// Number prints a figure with as many digits as it is worth.
func Number(f float64) string {
	if f < 100 {
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.0f", f)
}

// Table returns the header and a row for each measure: its name, its spread on each side, and the ratio of nodelet's
// median to that of each other side.
func (s Sides) Table() [][]string {
	sides := s.Names()
	header := append([]string{"measure: p50 / p90 / p99 / max (n)"}, sides...)
	for _, side := range sides {
		if side != nodelet {
			header = append(header, nodelet+"/"+side)
		}
	}
	rows := [][]string{header}
	for _, measure := range s.Measures() {
		row := []string{measure}
		for _, side := range sides {
			row = append(row, spread(s[side][measure]))
		}
		for _, side := range sides {
			if side != nodelet {
				row = append(row, ratio(s[nodelet][measure], s[side][measure]))
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// spread prints p50, p90 (of ten samples or more), p99 (of 100 or more), the maximum, and in parentheses the number of
// samples; one figure and the number if all samples are equal, "-" if there are none.
func spread(samples []float64) string {
	if len(samples) == 0 {
		return "-"
	}
	number := fmt.Sprintf(" (%d)", len(samples))
	if Quantile(samples, 0) == Quantile(samples, 1) {
		return Number(samples[0]) + number
	}
	text := Number(Quantile(samples, 0.5))
	if len(samples) >= 10 {
		text += " / " + Number(Quantile(samples, 0.9))
	}
	if len(samples) >= 100 {
		text += " / " + Number(Quantile(samples, 0.99))
	}
	return text + " / " + Number(Quantile(samples, 1)) + number
}

// ratio prints the ratio of the medians of a and b, or "-" if there is none.
func ratio(a, b []float64) string {
	if len(a) == 0 || len(b) == 0 || Quantile(b, 0.5) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", Quantile(a, 0.5)/Quantile(b, 0.5))
}
