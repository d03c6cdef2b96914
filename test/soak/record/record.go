// Package record keeps what runs of the soak test have found, and renders it for docs/robustness.md.
//
// It owns the format of test/soak/runs.jsonl: one run a line, as JSON. It never removes a run. The soak test appends
// to the file; the test of the documents reads it. A crash while a line is written leaves an incomplete last line,
// which Read reports.
package record

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// Run is one run of the soak test.
type Run struct {
	// Date is the day on which it began, as 2026-01-31. Commit is that of the agent under test.
	Date   string `json:"date"`
	Commit string `json:"commit"`
	// Profile, Network and Seed replay the run. An empty network is that of the runtime.
	Profile string `json:"profile"`
	Network string `json:"network,omitempty"`
	Seed    uint64 `json:"seed"`
	// Minutes is how long faults were injected and checked, without the start of the testbed.
	Minutes float64 `json:"minutes"`
	Rounds  int     `json:"rounds"`
	Pods    int64   `json:"pods"`
	// Killed counts SIGKILLs by kind of process, Faults the injected faults by name. Runs without Faults are older
	// than the record.
	Killed map[string]int `json:"killed"`
	Faults map[string]int `json:"faults,omitempty"`
	// Violations counts violated invariants. Forgotten counts what the container runtime forgot, see the package
	// comment of the soak test.
	Violations int `json:"violations"`
	Forgotten  int `json:"forgotten,omitempty"`
	// Note says what the violations were.
	Note string `json:"note,omitempty"`
}

// Kills returns how many processes the run has killed.
func (r Run) Kills() (n int) {
	for _, k := range r.Killed {
		n += k
	}
	return n
}

// Read reads all runs.
func Read(file string) (runs []Run, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		var r Run
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("read %s, line %d: %w", file, number, err)
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// Append adds a run.
func Append(file string, r Run) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(append(line, '\n'))
	return err
}

// Begin and End enclose the generated part of docs/robustness.md.
const (
	Begin = "<!-- begin of the soak runs; go run ./test/soak -table writes this part -->\n"
	End   = "<!-- end of the soak runs -->\n"
)

// Table renders the runs as Markdown, with sums over all of them.
func Table(runs []Run) string {
	var b strings.Builder
	var minutes float64
	var pods int64
	killed, faults := map[string]int{}, map[string]int{}
	for _, r := range runs {
		minutes, pods = minutes+r.Minutes, pods+r.Pods
		add(killed, r.Killed)
		add(faults, r.Faults)
	}
	all := Run{Killed: killed}.Kills()
	fmt.Fprintf(&b, "In total: %d runs, %.1f hours, %d pods, %d processes killed (%s).\n\n", len(runs), minutes/60, pods,
		all, counts(killed))
	b.WriteString("| date | commit | profile | network | seed | rounds | minutes | pods | killed | faults | " +
		"violations |\n" + strings.Repeat("|---", 11) + "|\n")
	for _, r := range runs {
		violations := fmt.Sprint(r.Violations)
		if r.Note != "" {
			violations += ": " + r.Note
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %d | %d | %.0f | %d | %d | %d | %s |\n", r.Date, r.Commit, r.Profile,
			cmp.Or(r.Network, "runtime"), r.Seed, r.Rounds, r.Minutes, r.Pods, r.Kills(), sum(r.Faults), violations)
	}
	fmt.Fprintf(&b, "\nInjected faults by kind: %s.\n", counts(faults))
	return b.String()
}

func add(to, from map[string]int) {
	for k, n := range from {
		to[k] += n
	}
}

func sum(m map[string]int) (n int) {
	for _, k := range m {
		n += k
	}
	return n
}

// counts renders "name 3, other 4" in the order of names.
func counts(m map[string]int) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(all, ", ")
}

// Replace returns the page with the part between Begin and End replaced by Table.
func Replace(page string, runs []Run) (string, error) {
	before, rest, ok := strings.Cut(page, Begin)
	_, after, ok2 := strings.Cut(rest, End)
	if !ok || !ok2 {
		return "", fmt.Errorf("the page has no part between %q and %q", Begin, End)
	}
	return before + Begin + "\n" + Table(runs) + "\n" + End + after, nil
}
