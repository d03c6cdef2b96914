package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// report prints median, 90th and 99th percentile and maximum of each measure, and the ratios of the medians.
func (b *bench) report(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range b.sides.Table() {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	_ = t.Flush()
}
