package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	knownlist "github.com/nodelet/nodelet/test/known"
)

// spec is the result of one spec that ran.
type spec struct {
	name  string // in full, as FOCUS matches it
	group string // the outermost container
	state string // passed, failed, timedout, panicked, interrupted, aborted
	why   string
	took  time.Duration
}

func (s spec) passed() bool { return s.state == "passed" }

// report is what the runner's report says: the specs that ran to their end, and how many others were chosen.
type report struct {
	specs   []spec
	skipped []string // names of specs that skipped themselves
	notRun  int      // number of specs that the time limit left out or ended
}

// suiteTimeout is in the message of a spec that the limit for all specs has ended.
const suiteTimeout = "suite timeout"

// runnerSpec is a spec in the runner's report.
type runnerSpec struct {
	ContainerHierarchyTexts    []string
	LeafNodeType, LeafNodeText string
	State                      string
	RunTime                    time.Duration
	Failure                    struct{ Message string }
}

// readReport reads the runner's JSON report.
func readReport(file string) (*report, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var suites []struct {
		PreRunStats struct{ SpecsThatWillRun int }
		SpecReports []runnerSpec
	}
	if err := json.Unmarshal(b, &suites); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	all := &report{}
	for _, suite := range suites {
		ended := 0
		for _, r := range suite.SpecReports {
			if all.add(r) {
				ended++
			}
		}
		all.notRun += max(0, suite.PreRunStats.SpecsThatWillRun-ended)
	}
	return all, nil
}

// add counts a spec, and reports whether it is one of the suite's that ran to its end or skipped itself. A setup of the
// suite counts only if it failed.
func (all *report) add(r runnerSpec) bool {
	isSpec := r.LeafNodeType == "It"
	name := strings.TrimSpace(strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " "))
	switch {
	case r.State == "skipped" && r.Failure.Message != "" && isSpec: // the other skipped ones were not chosen
		all.skipped = append(all.skipped, name)
		return true
	case r.State == "skipped", r.State == "pending", r.State == "interrupted", !isSpec && r.State == "passed",
		strings.Contains(r.Failure.Message, suiteTimeout):
		return false
	}
	s := spec{
		name:  name,
		state: r.State,
		why:   r.Failure.Message,
		took:  r.RunTime,
		group: r.LeafNodeType,
	}
	if len(r.ContainerHierarchyTexts) > 0 {
		s.group = r.ContainerHierarchyTexts[0]
	}
	all.specs = append(all.specs, s)
	return isSpec
}

// known maps the specs that may fail to their reasons, with one map for each agent.
type known map[string]map[string]string

// readKnown reads known.txt: comments give the reason of the lines after them, which are an agent's name (or "both")
// and the full name of a spec. A blank line ends a reason.
func readKnown(file string) (known, error) {
	all := known{"nodelet": {}, "kubelet": {}}
	return all, knownlist.ReadFile(file, all.add)
}

// The lists of specs that may fail, of the suite and of that for a single node.
const (
	knownFile     = "test/conformance/known.txt"
	knownNodeFile = "test/conformance/known-node.txt"
)

// allKnown reads both lists; root is the directory of the repository.
func allKnown(root string) (known, error) {
	all, err := readKnown(filepath.Join(root, knownFile))
	if err != nil {
		return nil, err
	}
	more, err := readKnown(filepath.Join(root, knownNodeFile))
	for agent, specs := range more {
		maps.Copy(all[agent], specs)
	}
	return all, err
}

func parseKnown(r io.Reader) (known, error) {
	all := known{"nodelet": {}, "kubelet": {}}
	return all, knownlist.Read(r, all.add)
}

// add adds one entry of known.txt.
func (k known) add(line, reason string) error {
	agent, name, _ := strings.Cut(line, " ")
	agents := []string{agent}
	if agent == "both" {
		agents = []string{"nodelet", "kubelet"}
	}
	if k[agents[0]] == nil || name == "" || reason == "" {
		return errors.New("want \"nodelet\", \"kubelet\" or \"both\" and a spec's name, below a comment with the reason")
	}
	for _, a := range agents {
		k[a][strings.TrimSpace(name)] = reason
	}
	return nil
}

// judge prints the table and the new failures, and returns an error if a spec failed that known.txt does not list.
func judge(w io.Writer, report *report, known map[string]string) error {
	if len(report.specs) == 0 {
		return errors.New("no spec ran: see FOCUS, SKIP and LABEL")
	}
	table(w, report.specs)
	fmt.Fprintf(w, "%d skipped themselves\n", len(report.skipped))
	var unknown, expected, gone []spec
	for _, s := range report.specs {
		_, listed := known[s.name]
		switch {
		case s.passed() && listed:
			gone = append(gone, s)
		case !s.passed() && listed:
			expected = append(expected, s)
		case !s.passed():
			unknown = append(unknown, s)
		}
	}
	tell(w, "failed, as known.txt says", expected, func(s spec) string { return known[s.name] })
	tell(w, "passed, though known.txt says it fails: take it out there", gone, func(spec) string { return "" })
	tell(w, "FAILED", unknown, func(s spec) string { return s.why })
	var errs [2]error
	if len(unknown) > 0 {
		errs[0] = fmt.Errorf("%d of %d specs failed that known.txt does not list", len(unknown), len(report.specs))
	}
	if report.notRun > 0 {
		errs[1] = fmt.Errorf("%d specs did not run within the time limit: RESUME=FILE goes on from the file result.json",
			report.notRun)
	}
	return errors.Join(errs[:]...)
}

func tell(w io.Writer, title string, all []spec, why func(spec) string) {
	slices.SortFunc(all, func(a, b spec) int { return cmp.Compare(a.name, b.name) })
	for _, s := range all {
		fmt.Fprintf(w, "\n%s: %s\n", title, s.name)
		for i, line := range strings.Split(why(s), "\n") {
			if line = strings.TrimSpace(line); line != "" && i < 6 {
				fmt.Fprintf(w, "    %.200s\n", line)
			}
		}
	}
}

func table(w io.Writer, report []spec) {
	type row struct {
		passed, all int
		longest     time.Duration
	}
	rows := map[string]*row{}
	var names []string
	sum := &row{}
	for _, s := range report {
		r := rows[s.group]
		if r == nil {
			r = &row{}
			rows[s.group] = r
			names = append(names, s.group)
		}
		for _, r := range []*row{r, sum} {
			r.all++
			r.longest = max(r.longest, s.took)
			if s.passed() {
				r.passed++
			}
		}
	}
	slices.Sort(names)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "GROUP\tPASSED\tOF\tLONGEST")
	for _, name := range names {
		r := rows[name]
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\n", name, r.passed, r.all, r.longest.Round(time.Second))
	}
	fmt.Fprintf(t, "all\t%d\t%d\t%s\n", sum.passed, sum.all, sum.longest.Round(time.Second))
	t.Flush()
}
