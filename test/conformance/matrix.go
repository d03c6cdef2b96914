package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The matrix is between these lines of docs/conformance.md.
const (
	matrixBegin = "<!-- made from test/conformance/results by: go run ./test/conformance -matrix -->"
	matrixEnd   = "<!-- end of the matrix -->"
)

// row is a suite in one environment, with the results by agent.
type row struct {
	suite, kubernetes string
	environment
	agents map[string]*result
}

func readResults(dir string) ([]*result, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []*result
	for _, file := range files {
		r, err := readResult(file)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// key are the columns of the matrix before those of the agents.
func (r *row) key() string {
	return strings.Join([]string{suites[r.suite].title, r.kubernetes, r.Cgroup + ", " + r.CgroupDriver,
		r.Runtime + ", " + r.OCIRuntime}, " | ")
}

// rows sorts results into the rows of the matrix.
func rows(results []*result) []*row {
	byKey := map[string]*row{}
	for _, r := range results {
		next := &row{suite: r.Suite, kubernetes: r.Kubernetes, environment: r.environment, agents: map[string]*result{}}
		if known, ok := byKey[next.key()]; ok {
			next = known
		}
		byKey[next.key()] = next
		next.agents[r.Agent] = r
	}
	var all []*row
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		all = append(all, byKey[key])
	}
	return all
}

// String is the text of a cell: figures, version, date, and the time that it took.
func (r *result) String() string {
	if r == nil {
		return "not run"
	}
	seconds := 0
	for _, run := range r.Runs {
		seconds += run.Seconds
	}
	last, several := r.Runs[len(r.Runs)-1], ""
	if n := len(r.Runs); n > 1 {
		several = fmt.Sprintf(" in %d runs", n)
	}
	if r.NotRun > 0 {
		several += fmt.Sprintf(", %d not run", r.NotRun)
	}
	return fmt.Sprintf("**%d of %d**%s; %s, %s, %d min", len(r.Passed), len(r.Passed)+len(r.Failed), several,
		last.AgentVersion, last.Began.Format("2006-01-02"), (seconds+59)/60)
}

// matrix renders the table, the specs that failed with the causes that are known, and the machines.
func matrix(results []*result, causes known) string {
	if len(results) == 0 {
		return "No result is kept yet.\n"
	}
	var b strings.Builder
	b.WriteString("| suite | Kubernetes | cgroup | runtime | nodelet | kubelet |\n|---|---|---|---|---|---|\n")
	all := rows(results)
	for _, r := range all {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.key(), r.agents["nodelet"], r.agents["kubelet"])
	}
	if failures := failures(all, causes); len(failures) > 0 {
		b.WriteString("\n| failed spec | suite, cgroup, runtime | agents | cause |\n|---|---|---|---|\n")
		b.WriteString(strings.Join(failures, ""))
	}
	machines := map[string]bool{}
	for _, r := range results {
		for _, run := range r.Runs {
			machines[fmt.Sprintf("cgroup %s: %s, kernel %s", r.Cgroup, run.Kind, run.Kernel)] = true
		}
	}
	fmt.Fprintf(&b, "\nMachines: %s.\n", strings.Join(slices.Sorted(maps.Keys(machines)), "; "))
	return b.String()
}

// failures are lines of a table: each failed spec with the agents that failed it, and the cause, or if that is not
// known what the spec says.
func failures(all []*row, causes known) []string {
	var lines []string
	for _, r := range all {
		agents := map[string][]string{}
		for _, agent := range slices.Sorted(maps.Keys(r.agents)) {
			for name := range r.agents[agent].Failed {
				agents[name] = append(agents[name], agent)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(agents)) {
			first := agents[name][0]
			cause := cmp.Or(causes[first][name], "not known yet; "+r.agents[first].Failed[name])
			lines = append(lines, fmt.Sprintf("| %s | %s, %s, %s, %s | %s | %s |\n", cell(name),
				r.suite, r.Cgroup, r.Runtime, r.OCIRuntime, strings.Join(agents[name], ", "), cell(cause)))
		}
	}
	return lines
}

// cell returns a text for a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// withMatrix replaces the matrix in the text of a page.
func withMatrix(page, table string) (string, error) {
	before, rest, ok := strings.Cut(page, matrixBegin+"\n")
	_, after, ok2 := strings.Cut(rest, matrixEnd)
	if !ok || !ok2 {
		return "", fmt.Errorf("find the place of the matrix: the page must have the lines %q and %q", matrixBegin, matrixEnd)
	}
	return before + matrixBegin + "\n" + table + matrixEnd + after, nil
}

// rewrite makes the matrix of the results in dir and puts it into the page.
func rewrite(dir, page string) error {
	results, err := readResults(dir)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	causes, err := allKnown(".")
	if err != nil {
		return err
	}
	next, err := withMatrix(string(text), matrix(results, causes))
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(next), 0o644)
}
