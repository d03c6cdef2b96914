package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodelet/nodelet/test/bench/figures"
)

// charted lists, for each kind of run, its title and the measures that get a picture. All of one picture have the same
// unit.
var charted = []struct {
	run, title string
	measures   []string
}{
	{"pods", "Pods alone and in a burst", []string{
		"create to Ready, one at a time, ms",
		"delete to gone, one at a time, ms",
		"create to Ready, 40 at once, ms",
		"delete to gone, 40 at once, ms",
	}},
	{"throughput", "Pods created and deleted for a minute", []string{
		"create to Ready, 2 pods a second, ms",
		"delete to gone, 2 pods a second, ms",
		"create to Ready, ms",
		"delete to gone, ms",
	}},
	{"probes", "110 pods with three probes each", []string{
		"create to Ready, one at a time, ms",
		"create to Ready, one at a time, beside 110 pods with three probes each, ms",
	}},
	{"storage", "Volumes", nil},
}

// writePage writes the page, with the last record of each kind of run whole and all records in the history. The
// pictures go into a directory beside the page that has the page's name without its extension.
func writePage(page string, records []*figures.Record) error {
	slices.SortStableFunc(records, func(a, b *figures.Record) int { return a.Began.Compare(b.Began) })
	dir := strings.TrimSuffix(page, filepath.Ext(page))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(pageHead)
	for _, c := range charted {
		var all []*figures.Record
		for _, r := range records {
			if r.Run == c.run {
				all = append(all, r)
			}
		}
		if len(all) == 0 {
			continue
		}
		last := all[len(all)-1]
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", c.title, describe(last))
		if len(c.measures) > 0 {
			picture := filepath.Join(dir, c.run+".svg")
			if err := os.WriteFile(picture, chart(c.measures, last.Sides), 0o644); err != nil {
				return err
			}
			fmt.Fprintf(&b, "\n![%s](%s/%s.svg)\n", c.title, filepath.Base(dir), c.run)
		}
		b.WriteString("\n" + markdown(last.Sides.Table()))
		b.WriteString(history(c.measures, all))
	}
	return os.WriteFile(page, []byte(b.String()), 0o644)
}

const pageHead = `# Performance

<!-- written by "make performance" from the records in docs/performance; do not edit -->

How fast nodelet is, how much memory and CPU it uses, and the same for the kubelet.
[SPECIFICATION.md](../SPECIFICATION.md) has the figures that nodelet promises, and the command that measures them.

Each table is one run of the benchmark on one machine. Compare only ratios within a run: figures of different runs
differ because machines do. *floor* makes only the CRI calls of a pod, without an API server. *null* is an agent that
watches pods, makes the same CRI calls, patches one status per pod, and does nothing else. All agents get the same
configuration file. Times are from the request at the API server to the event that shows the result. The records in
docs/performance have all samples.

A cell has the median (p50), the 90th percentile (p90) of ten measurements or more, the 99th (p99) of 100 or more, the
maximum, and in parentheses the number of measurements. Between two measurements a percentile is interpolated: the
median of two is their mean. One or two measurements show the size of a figure, not how much it varies.
`

// describe says what was measured where.
func describe(r *figures.Record) string {
	return fmt.Sprintf("%s, nodelet %s, Linux %s, %d CPUs.", r.Began.Format("2006-01-02"), r.Version, r.Kernel, r.CPUs)
}

func markdown(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
	return b.String()
}

// history returns a table of nodelet's medians in all runs, with the ratios to the other sides.
func history(measures []string, all []*figures.Record) string {
	if len(all) < 2 || len(measures) == 0 {
		return ""
	}
	rows := [][]string{append([]string{"run"}, measures...)}
	for _, r := range all {
		row := []string{r.Began.Format("2006-01-02") + " " + r.Version}
		for _, m := range measures {
			row = append(row, brief(r.Sides, m))
		}
		rows = append(rows, row)
	}
	return "\nAll runs: nodelet's median, and its ratio to the other sides.\n\n" + markdown(rows)
}

func brief(s figures.Sides, measure string) string {
	samples := s["nodelet"][measure]
	if len(samples) == 0 {
		return "-"
	}
	median := figures.Quantile(samples, 0.5)
	text := figures.Number(median)
	for _, side := range s.Names() {
		others := s[side][measure]
		if side == "nodelet" || len(others) == 0 || figures.Quantile(others, 0.5) == 0 {
			continue
		}
		text += fmt.Sprintf(", %.2f × %s", median/figures.Quantile(others, 0.5), side)
	}
	return text
}
