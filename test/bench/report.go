package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
)

// report prints median, 90th percentile and maximum of each measure, and the ratios of the medians.
func (b *bench) report(w io.Writer) {
	names := map[string]bool{}
	for _, side := range b.figures {
		for name := range side {
			names[name] = true
		}
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "measure\tfloor p50/p90/max\tkubelet p50/p90/max\tnodelet p50/p90/max\tnodelet/kubelet\tnodelet/floor\tnodelet-floor")
	for _, name := range slices.Sorted(maps.Keys(names)) {
		floor, kubelet, nodelet := b.figures[floorSide][name], b.figures["kubelet"][name], b.figures["nodelet"][name]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, triple(floor), triple(kubelet), triple(nodelet),
			ratio(nodelet, kubelet), ratio(nodelet, floor), difference(nodelet, floor))
	}
	_ = t.Flush()
}

func triple(s []float64) string {
	if len(s) == 0 {
		return "-"
	}
	if quantile(s, 0) == quantile(s, 1) {
		return number(s[0])
	}
	return number(quantile(s, 0.5)) + " / " + number(quantile(s, 0.9)) + " / " + number(quantile(s, 1))
}

func ratio(a, b []float64) string {
	if len(a) == 0 || len(b) == 0 || quantile(b, 0.5) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", quantile(a, 0.5)/quantile(b, 0.5))
}

func difference(a, b []float64) string {
	if len(a) == 0 || len(b) == 0 {
		return "-"
	}
	return fmt.Sprintf("%+.0f", quantile(a, 0.5)-quantile(b, 0.5))
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
