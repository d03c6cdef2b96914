package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
)

// report prints median, 90th and 99th percentile and maximum of each measure, and the ratios of the medians.
func (b *bench) report(w io.Writer) {
	names := map[string]bool{}
	for _, side := range b.figures {
		for name := range side {
			names[name] = true
		}
	}
	sides := slices.DeleteFunc([]string{floorSide, string(nullSide), "kubelet", "nodelet"}, func(side string) bool {
		return b.figures[side] == nil
	})
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprint(t, "measure (p50/p90/p99/max)")
	for _, side := range sides {
		fmt.Fprint(t, "\t"+side)
	}
	others := slices.DeleteFunc(slices.Clone(sides), func(side string) bool { return side == "nodelet" })
	for _, side := range others {
		fmt.Fprint(t, "\tnodelet/"+side)
	}
	fmt.Fprintln(t)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprint(t, name)
		for _, side := range sides {
			fmt.Fprint(t, "\t"+spread(b.figures[side][name]))
		}
		for _, side := range others {
			fmt.Fprint(t, "\t"+ratio(b.figures["nodelet"][name], b.figures[side][name]))
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush()
}

func spread(s []float64) string {
	if len(s) == 0 {
		return "-"
	}
	if quantile(s, 0) == quantile(s, 1) {
		return number(s[0])
	}
	text := number(quantile(s, 0.5)) + " / " + number(quantile(s, 0.9))
	if len(s) >= 100 {
		text += " / " + number(quantile(s, 0.99))
	}
	return text + " / " + number(quantile(s, 1))
}

func ratio(a, b []float64) string {
	if len(a) == 0 || len(b) == 0 || quantile(b, 0.5) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", quantile(a, 0.5)/quantile(b, 0.5))
}

func number(f float64) string {
	if f < 100 {
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.0f", f)
}

// quantile returns the q-quantile of the sorted samples by the nearest-rank method.
func quantile(samples []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	return s[min(len(s)-1, int(q*float64(len(s))))]
}
