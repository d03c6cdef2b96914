package figures

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const table = `
Other text.

| What | Where |
|---|---|
| not a promise | here |

| Promise | Run | Sides | Measure | Statistic | Bound |
|---|---|---|---|---|---|
| A pod is soon Ready. | pods | nodelet / floor | create to Ready, ms | p50 | ≤ 1.2 |
| Many pods a second. | throughput | nodelet | pods a second | p50 | ≥ 4 |
`

func TestParsePromises(t *testing.T) {
	got, err := ParsePromises([]byte(table))
	if err != nil {
		t.Fatal(err)
	}
	want := []Promise{
		{
			Text:      "A pod is soon Ready.",
			Run:       "pods",
			Side:      "nodelet",
			Against:   "floor",
			Measure:   "create to Ready, ms",
			Statistic: "p50",
			Bound:     1.2,
		},
		{
			Text:      "Many pods a second.",
			Run:       "throughput",
			Side:      "nodelet",
			Measure:   "pods a second",
			Statistic: "p50",
			AtLeast:   true,
			Bound:     4,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("promises: got %+v, want %+v", got, want)
	}
}

func TestParsePromisesRefuses(t *testing.T) {
	good := "| Many pods a second. | throughput | nodelet | pods a second | p50 | ≥ 4 |"
	for what, change := range map[string][2]string{
		"columns":          {"| p50 ", ""},
		"column Sides":     {"| nodelet |", "| nodelet /  |"},
		"column Statistic": {"p50", "mean"},
		"column Bound":     {"≥ 4", "about 4"},
	} {
		bad := strings.Replace(table, good, strings.Replace(good, change[0], change[1], 1), 1)
		_, err := ParsePromises([]byte(bad))
		if err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "line 11") {
			t.Errorf("%q replaced by %q: got error %v, want one that names line 11 and %q", change[0], change[1], err, what)
		}
	}
}

func TestPromiseValue(t *testing.T) {
	r := &Record{Run: "pods", Sides: Sides{}}
	for _, ms := range []float64{100, 300, 200} {
		r.Sides.Note("floor", "start, ms", ms)
		r.Sides.Note("nodelet", "start, ms", ms*1.5)
	}
	r.Sides.Note("null", "start, ms", 0)
	for _, c := range []struct {
		p    Promise
		want float64
	}{
		{Promise{Side: "nodelet", Measure: "start, ms", Statistic: "p50"}, 300},
		{Promise{Side: "nodelet", Measure: "start, ms", Statistic: "max"}, 450},
		{Promise{Side: "nodelet", Against: "floor", Measure: "start, ms", Statistic: "p50"}, 1.5},
	} {
		if got, err := c.p.Value(r); got != c.want || err != nil {
			t.Errorf("%+v: got %v, %v, want %v", c.p, got, err, c.want)
		}
	}
	for _, p := range []Promise{
		{Side: "kubelet", Measure: "start, ms", Statistic: "p50"},
		{Side: "nodelet", Measure: "end, ms", Statistic: "p50"},
		{Side: "nodelet", Against: "kubelet", Measure: "start, ms", Statistic: "p50"},
		{Side: "nodelet", Against: "null", Measure: "start, ms", Statistic: "p50"},
	} {
		if got, err := p.Value(r); err == nil {
			t.Errorf("%+v: got %v, want an error", p, got)
		}
	}
}

func TestPromiseKeeps(t *testing.T) {
	most, least := Promise{Bound: 2}, Promise{Bound: 2, AtLeast: true}
	for value, want := range map[float64][2]bool{1: {true, false}, 2: {true, true}, 3: {false, true}} {
		if got := [2]bool{most.Keeps(value), least.Keeps(value)}; got != want {
			t.Errorf("%v against ≤ 2 and ≥ 2: got %v, want %v", value, got, want)
		}
	}
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		q, want float64
	}{
		{[]float64{7}, 0.5, 7},
		{[]float64{7}, 0.9, 7},
		{[]float64{20, 10}, 0, 10},
		{[]float64{20, 10}, 0.5, 15},
		{[]float64{20, 10}, 1, 20},
		{[]float64{30, 10, 20}, 0.5, 20},
		{[]float64{40, 10, 30, 20}, 0.5, 25},
		{[]float64{0, 10, 20, 30, 40, 50}, 0.9, 45},
	} {
		if got := Quantile(c.samples, c.q); got != c.want {
			t.Errorf("quantile %v of %v: got %v, want %v", c.q, c.samples, got, c.want)
		}
	}
}

func TestTable(t *testing.T) {
	s := Sides{}
	for i := range 101 {
		s.Note("floor", "start, ms", float64(1000+10*i))
	}
	for i := range 11 {
		s.Note("nodelet", "start, ms", float64(500+10*i))
	}
	s.Note("floor", "end, ms", 20)
	s.Note("nodelet", "end, ms", 10)
	s.Note("nodelet", "end, ms", 20)
	s.Note("nodelet", "size, MiB", 28)
	s.Note("nodelet", "size, MiB", 28)
	want := [][]string{
		{"measure: p50 / p90 / p99 / max (n)", "floor", "nodelet", "nodelet/floor"},
		{"end, ms", "20.0 (1)", "15.0 / 20.0 (2)", "0.75"},
		{"size, MiB", "-", "28.0 (2)", "-"},
		{"start, ms", "1500 / 1900 / 1990 / 2000 (101)", "550 / 590 / 600 (11)", "0.37"},
	}
	if got := s.Table(); !reflect.DeepEqual(got, want) {
		t.Errorf("table: got %q, want %q", got, want)
	}
}

func TestRecordRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.json")
	want := &Record{Run: "pods", Version: "v1", CPUs: 2, Sides: Sides{"nodelet": {"start, ms": {1.2345678}}}}
	if err := want.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) || got.Sides["nodelet"]["start, ms"][0] != 1.235 {
		t.Errorf("record: got %+v, want %+v rounded to thousandths", got, want)
	}
}

func FuzzParsePromises(f *testing.F) {
	f.Add([]byte(table))
	f.Fuzz(func(t *testing.T, markdown []byte) {
		promises, err := ParsePromises(markdown)
		for _, p := range promises {
			if p.Side == "" || quantiles[p.Statistic] == 0 {
				t.Errorf("promise without side or statistic: %+v, error %v", p, err)
			}
		}
	})
}
