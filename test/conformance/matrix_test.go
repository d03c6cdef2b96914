package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodelet/nodelet/test/testbed"
)

// TestMatrixIsUpToDate checks that the matrix in docs/conformance.md is that of the results that are kept.
func TestMatrixIsUpToDate(t *testing.T) {
	results, err := readResults("results")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../" + matrixPage)
	if err != nil {
		t.Fatal(err)
	}
	causes, err := allKnown("../..")
	if err != nil {
		t.Fatal(err)
	}
	want, err := withMatrix(string(page), matrix(results, causes))
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != want {
		t.Errorf("%s is not what the results say: run go run ./test/conformance -matrix", matrixPage)
	}
}

// TestReadmeIsUpToDate checks that README.md says how many specs passed in the results that are kept.
func TestReadmeIsUpToDate(t *testing.T) {
	results, err := readResults("results")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := strings.Join(strings.Fields(string(text)), " ")
	claims := map[string]string{
		"node v1":        "On v1, %d passed; the other one",
		"node v2":        "NodeConformance of `[sig-node]`: all %d specs passed on cgroup v2",
		"storage v2":     "NodeConformance of `[sig-storage]`: all %d passed on v2",
		"conformance v1": "Conformance of all groups, on two nodes: all %d passed on cgroup v1",
		"conformance v2": "all %d passed on cgroup v1, in one run, and on v2",
	}
	checked := map[string]bool{}
	for _, r := range results {
		name := r.Suite + " " + r.Cgroup
		claim := claims[name]
		if claim == "" || r.Agent != string(testbed.Nodelet) {
			continue
		}
		checked[name] = true
		claim = fmt.Sprintf(claim, len(r.Passed))
		if !strings.Contains(readme, claim) || strings.Contains(claim, "all ") && len(r.Failed)+r.NotRun > 0 {
			t.Errorf("%s with %s: got %d passed, %d failed, %d not run; want README.md to say so, not %q",
				name, r.Runtime, len(r.Passed), len(r.Failed), r.NotRun, claim)
		}
	}
	if len(checked) != len(claims) {
		t.Errorf("got results of %v, want them of each claim", slices.Sorted(maps.Keys(checked)))
	}
}

var sampleDay = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func sample(passed []string, failed map[string]string) *result {
	return &result{
		Suite:      "node",
		Agent:      "nodelet",
		Kubernetes: "v1.37.2",
		environment: environment{
			Cgroup:       "v2",
			CgroupDriver: "systemd",
			Runtime:      "containerd 2.4.2",
			OCIRuntime:   "runc 1.5.2",
		},
		Runs: []portion{{
			AgentVersion: "v1.2.3",
			machine:      machine{Kernel: "7.3", Kind: "machine, 2 processors"},
			Began:        sampleDay,
			Seconds:      61,
		}},
		Passed: passed,
		Failed: failed,
	}
}

// TestMatrix checks figures, failures, and a cell without a run.
func TestMatrix(t *testing.T) {
	r := sample([]string{"a", "b"}, map[string]string{"c": "failed: y", "d": "failed: z|z"})
	r.NotRun = 7
	got := matrix([]*result{r}, known{"nodelet": {"c": "the reason"}})
	for _, want := range []string{
		"| v1.37.2 | v2, systemd | containerd 2.4.2, runc 1.5.2 |",
		" | **2 of 4**, 7 not run; v1.2.3, 2026-01-02, 2 min | not run |\n",
		"| c | node, v2, containerd 2.4.2, runc 1.5.2 | nodelet | the reason |\n",
		"| d | node, v2, containerd 2.4.2, runc 1.5.2 | nodelet | not known yet; failed: z\\|z |\n",
		"Machines: cgroup v2: machine, 2 processors, kernel 7.3.\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got:\n%s\nwant in it:\n%s", got, want)
		}
	}
}

// TestResume checks that a run that resumes another leaves out what has passed, that a spec counts once, and as its
// last run ended, that one that skips itself now has not failed, that the machines may differ, and that runs in
// different environments are not mixed.
func TestResume(t *testing.T) {
	before := sample([]string{"a (x)"}, map[string]string{"b": "failed: x", "c": "failed: y", "e": "failed: z"})
	if got, want := before.others(), []string{`--skip= a +\(x\)$`}; !slices.Equal(got, want) {
		t.Errorf("arguments: got %q, want %q", got, want)
	}
	r := sample(nil, map[string]string{})
	r.Runs[0].Began, r.Runs[0].Kernel = sampleDay.Add(time.Hour), "7.4"
	again, passed := spec{name: "a (x)", state: "passed"}, spec{name: "b", state: "passed"}
	r.end(&report{specs: []spec{again, passed, {name: "d", state: "failed", why: "z\nmore"}}, notRun: 3})
	if err := r.continues(before); err != nil {
		t.Fatal(err)
	}
	r.resume(before, []string{"e"})
	if want := []string{"a (x)", "b"}; !slices.Equal(r.Passed, want) {
		t.Errorf("passed: got %q, want %q", r.Passed, want)
	}
	if len(r.Failed) != 2 || r.Failed["c"] != "failed: y" || r.Failed["d"] != "failed: z" {
		t.Errorf("failed: got %q, want c and d", r.Failed)
	}
	if len(r.Runs) != 2 || r.Runs[1].Passed != 2 || r.Runs[1].Failed != 1 || r.NotRun != 2 {
		t.Errorf("got %+v, want two runs, the second with two passed and one failed, and two specs that never ran", r)
	}
	for _, kernel := range []string{"7.3", "7.4"} {
		if page := matrix([]*result{r}, nil); !strings.Contains(page, "cgroup v2: machine, 2 processors, kernel "+kernel) {
			t.Errorf("got %s, want the kernel %s among the machines", page, kernel)
		}
	}
	other := sample(nil, nil)
	other.OCIRuntime = "crun 1.8"
	if r.continues(other) == nil {
		t.Error("a run with another OCI runtime was resumed, want an error")
	}
}

// TestKeep checks that a result of a changed tree or of no suite is refused, and that another is stored under a name
// that says what it is.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "result.json")
	r := sample([]string{"a"}, nil)
	write := func() {
		if err := r.write(file); err != nil {
			t.Fatal(err)
		}
	}
	write()
	if err := keep(file, dir); err != nil {
		t.Fatal(err)
	}
	kept, err := readResult(filepath.Join(dir, "node-nodelet-v2-containerd-runc.json"))
	if err != nil || len(kept.Passed) != 1 || kept.Cgroup != "v2" {
		t.Errorf("got %+v, %v, want the result", kept, err)
	}
	r.Runs[0].AgentVersion = "v1.2.3+nodelet.0.1.0-dev.abc-dirty"
	write()
	if keep(file, dir) == nil {
		t.Error("a result of a changed tree: got it kept, want it refused")
	}
	r.Runs[0].AgentVersion, r.Suite = "v1.2.3", ""
	write()
	if keep(file, dir) == nil {
		t.Error("a result of no suite: got it kept, want it refused")
	}
}

// TestChoose checks that expressions of the user replace a suite.
func TestChoose(t *testing.T) {
	o := options{suite: defaultSuite}
	if err := o.choose(); err != nil || o.focus == "" || o.label == "" || o.suite != defaultSuite {
		t.Errorf("got %+v, %v, want the expressions of the suite", o, err)
	}
	o = options{suite: defaultSuite, focus: "x"}
	if err := o.choose(); err != nil || o.suite != "" || o.label != "" {
		t.Errorf("got %+v, %v, want no suite", o, err)
	}
	o = options{suite: "conformance"}
	if err := o.choose(); err != nil || o.testbed.Nodes != 2 {
		t.Errorf("got %d nodes, %v, want the 2 that the suite needs", o.testbed.Nodes, err)
	}
	o = options{suite: "conformance", focus: "x", testbed: testbed.Options{Nodes: 3}}
	if err := o.choose(); err != nil || o.testbed.Nodes != 3 {
		t.Errorf("got %d nodes, %v, want the 3 that the flag says", o.testbed.Nodes, err)
	}
	o = options{suite: "none"}
	if o.choose() == nil {
		t.Error("an unknown suite: got no error, want one")
	}
}
