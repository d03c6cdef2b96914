package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/bench/figures"
)

// repository is the root of the module.
const repository = "../../.."

// keptRecords returns the records of docs/performance.
func keptRecords(t *testing.T) []*figures.Record {
	t.Helper()
	files, err := filepath.Glob(repository + "/docs/performance/*.json")
	if err != nil {
		t.Fatal(err)
	}
	records, err := load(files)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// TestPageIsUpToDate checks that docs/performance.md and its pictures are those of the records.
func TestPageIsUpToDate(t *testing.T) {
	dir := t.TempDir()
	if err := writePage(filepath.Join(dir, "performance.md"), keptRecords(t)); err != nil {
		t.Fatal(err)
	}
	written, err := filepath.Glob(dir + "/performance/*.svg")
	if err != nil || len(written) == 0 {
		t.Fatalf("got %d pictures, %v", len(written), err)
	}
	for _, file := range append(written, filepath.Join(dir, "performance.md")) {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join("docs", strings.TrimPrefix(file, dir))
		if got, err := os.ReadFile(filepath.Join(repository, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the records say (%v): run make performance", name, err)
		}
	}
}

// readmeRow says where the figures of a row of README.md come from.
type readmeRow struct {
	run, measure string
	// scraped, if set, is the measure of one scrape, in ms of CPU time: one comes every 30 s.
	scraped string
}

// TestReadmeFigures checks the table of README.md: each figure is the median in the newest record, rounded. More than
// 200 measurements are not counted there. docs/requirements.md repeats three of them.
func TestReadmeFigures(t *testing.T) {
	text, err := os.ReadFile(repository + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "|---|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	lines := strings.Split(table, "\n")
	rest := readmeRow{run: "pods", measure: "CPU at rest, 110 pods, millicores"}
	probes := readmeRow{run: "probes", measure: "CPU at rest, 110 pods with three probes each, millicores"}
	memory := readmeRow{run: "probes", measure: "RSS, 110 pods with three probes each, MiB"}
	rows := []readmeRow{
		{run: "pods", measure: "create to Ready, one at a time, ms"},
		{run: "pods", measure: "create to Ready, 40 at once, ms"},
		{run: "throughput", measure: "pods a second, 10 at a time"},
		{run: "throughput", measure: "create to Ready, ms"},
		rest,
		{run: "pods", measure: rest.measure, scraped: "CPU of one scrape of all endpoints, 110 pods, ms"},
		probes,
		memory,
	}
	if len(lines) != len(rows) {
		t.Fatalf("got %d rows, want %d", len(lines), len(rows))
	}
	last := map[string]*figures.Record{}
	for _, r := range keptRecords(t) {
		if last[r.Run] == nil || r.Began.After(last[r.Run].Began) {
			last[r.Run] = r
		}
	}
	shown := map[readmeRow]string{}
	for i, row := range rows {
		cells := strings.Split(strings.Trim(lines[i], "| "), " | ")
		for j, side := range []string{"nodelet", "kubelet"} {
			measured := last[row.run].Sides[side]
			value := figures.Quantile(measured[row.measure], 0.5)
			if row.scraped != "" {
				value += figures.Quantile(measured[row.scraped], 0.5) / 30
			}
			checkRounded(t, cells[j+1], value)
			over, more := strings.CutPrefix(cells[3], "over ")
			said, err := strconv.Atoi(over)
			if n := len(measured[row.measure]); err != nil || more && n <= said || !more && n != said {
				t.Errorf("README.md: got %s measurements in %q, %v, want %d", cells[3], lines[i], err, n)
			}
		}
		shown[row] = cells[1]
	}
	needs, err := os.ReadFile(repository + "/docs/requirements.md")
	want := fmt.Sprintf("%s (RSS), and %s at rest, %s with three probes", shown[memory], shown[rest],
		strings.TrimSuffix(shown[probes], " millicores"))
	if err != nil || !strings.Contains(string(needs), want) {
		t.Errorf("docs/requirements.md: got error %v, want it to say %q", err, want)
	}
}

// checkRounded checks that a text, such as "2.9 s", is a value in ms, MiB or millicores, rounded to its digits.
func checkRounded(t *testing.T, text string, value float64) {
	t.Helper()
	number, unit, _ := strings.Cut(text, " ")
	if unit == "s" {
		value /= 1000
	}
	_, decimals, _ := strings.Cut(number, ".")
	if want := strconv.FormatFloat(value, 'f', len(decimals), 64); number != want {
		t.Errorf("README.md: got %q, want %q", text, want+" "+unit)
	}
}
