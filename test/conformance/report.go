package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
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

// readReport reads the runner's JSON report, without skipped specs.
func readReport(file string) ([]spec, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts    []string
			LeafNodeType, LeafNodeText string
			State                      string
			RunTime                    time.Duration
			Failure                    struct{ Message string }
		}
	}
	if err := json.Unmarshal(b, &suites); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	var all []spec
	for _, suite := range suites {
		for _, r := range suite.SpecReports {
			if r.State == "skipped" || r.State == "pending" || r.LeafNodeType != "It" && r.State == "passed" {
				continue
			}
			s := spec{name: strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " "),
				state: r.State, why: r.Failure.Message, took: r.RunTime, group: r.LeafNodeType}
			if len(r.ContainerHierarchyTexts) > 0 {
				s.group = r.ContainerHierarchyTexts[0]
			}
			s.name = strings.TrimSpace(s.name)
			all = append(all, s)
		}
	}
	return all, nil
}

// known maps the specs that may fail to their reasons, with one map for each agent.
type known map[string]map[string]string

// readKnown reads known.txt: comments give the reason of the lines after them, which are an agent's name (or "both")
// and the full name of a spec. A blank line ends a reason.
func readKnown(file string) (known, error) {
	all := known{"nodelet": {}, "kubelet": {}}
	return all, knownlist.ReadFile(file, all.add)
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
func judge(w io.Writer, report []spec, known map[string]string) error {
	if len(report) == 0 {
		return errors.New("no spec ran: see FOCUS, SKIP and LABEL")
	}
	table(w, report)
	var unknown, expected, gone []spec
	for _, s := range report {
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
	if len(unknown) > 0 {
		return fmt.Errorf("%d of %d specs failed that known.txt does not list", len(unknown), len(report))
	}
	return nil
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
