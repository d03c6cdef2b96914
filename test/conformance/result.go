package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/version"

	"github.com/nodelet/nodelet/test/testbed"
)

// result is what is kept of a suite with one agent in one environment: a file in results/, from which the matrix in
// docs/conformance.md is made. It comes from one run, or from a run and others that resumed it.
type result struct {
	Suite      string `json:"suite"`
	Agent      string `json:"agent"`      // nodelet or kubelet
	Kubernetes string `json:"kubernetes"` // version of the control plane and of the suite
	environment
	Runs []portion `json:"runs"`
	// NotRun is the number of specs that time limits have left out of each run.
	NotRun int `json:"notRun,omitempty"`
	// Passed and Failed have full names of specs. Specs that skipped themselves are in neither.
	Passed []string          `json:"passed"`
	Failed map[string]string `json:"failed"` // with the first line of the message
}

// environment is what the agent runs on. Runs of one result have the same.
type environment struct {
	Cgroup       string `json:"cgroup"` // v1 or v2
	CgroupDriver string `json:"cgroupDriver"`
	Runtime      string `json:"runtime"`    // "containerd 2.4.2"
	OCIRuntime   string `json:"ociRuntime"` // "runc 1.5.2"
}

// machine is where a run took place. Runs of one result may have different ones.
type machine struct {
	Kernel string `json:"kernel"`
	Kind   string `json:"machine"`
}

// portion is one run of a suite, or of what earlier runs have left of it.
type portion struct {
	// AgentVersion is that of the agent's program; nodelet's has the commit in it.
	AgentVersion string `json:"agentVersion"`
	machine
	Began   time.Time `json:"began"`
	Seconds int       `json:"seconds"`
	Passed  int       `json:"passed"`
	Failed  int       `json:"failed"`
}

// cgroupVersion returns the version of this machine's cgroup hierarchy.
func cgroupVersion() (string, error) {
	var s unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &s); err != nil {
		return "", fmt.Errorf("find the cgroup version: %w", err)
	}
	if s.Type == unix.CGROUP2_SUPER_MAGIC {
		return "v2", nil
	}
	return "v1", nil
}

// thisMachine returns the kernel and the kind of this machine, with the number of its processors.
func thisMachine() (machine, error) {
	cpus, err := os.ReadFile("/proc/cpuinfo")
	kind := "machine"
	if strings.Contains(string(cpus), "User Mode Linux") {
		kind = "User-Mode Linux"
	}
	var kernel unix.Utsname
	err = errors.Join(err, unix.Uname(&kernel))
	return machine{
		Kernel: unix.ByteSliceToString(kernel.Release[:]),
		Kind:   fmt.Sprintf("%s, %d processors", kind, runtime.NumCPU()),
	}, err
}

// begin returns the result of a run that begins now, without its specs.
func begin(ctx context.Context, o options, tb *testbed.Testbed) (*result, error) {
	r := &result{Suite: o.suite, Agent: string(o.agent), Failed: map[string]string{}}
	run := portion{Began: time.Now().UTC().Truncate(time.Second)}
	var errs [6]error
	r.Cgroup, errs[0] = cgroupVersion()
	run.machine, errs[1] = thisMachine()
	r.OCIRuntime, errs[2] = tb.Nodes[0].Runtime.OCIVersion(ctx)
	r.CgroupDriver = tb.Nodes[0].CgroupDriver()
	r.Kubernetes, errs[3] = serverVersion(ctx, tb)
	r.Runtime, errs[4] = tb.Nodes[0].Runtime.Version(ctx)
	run.AgentVersion, errs[5] = agentVersion(ctx, o, tb)
	r.Runs = []portion{run}
	return r, errors.Join(errs[:]...)
}

// agentVersion returns what the agent's program says with --version, which is what the Node object says as well.
func agentVersion(ctx context.Context, o options, tb *testbed.Testbed) (string, error) {
	program := o.testbed.NodeletBin
	if o.agent == testbed.Kubelet {
		var err error
		if program, err = tb.Kubelet(ctx); err != nil {
			return "", err
		}
	}
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask the agent for its version: %w", err)
	}
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "Kubernetes "), nil
}

// serverVersion returns the version of the testbed's API server, for example "v1.37.2".
func serverVersion(ctx context.Context, tb *testbed.Testbed) (string, error) {
	text, err := tb.Kubectl(ctx, "get", "--raw", "/version")
	if err != nil {
		return "", err
	}
	var v version.Info
	err = json.Unmarshal([]byte(text), &v)
	return v.GitVersion, err
}

// end takes the specs of the run's report.
func (r *result) end(report *report) {
	last := &r.Runs[len(r.Runs)-1]
	last.Seconds = int(time.Since(last.Began).Seconds())
	r.NotRun = report.notRun
	for _, s := range report.specs {
		if s.passed() {
			last.Passed++
			r.Passed = append(r.Passed, s.name)
			continue
		}
		last.Failed++
		why, _, _ := strings.Cut(strings.TrimSpace(s.why), "\n")
		r.Failed[s.name] = fmt.Sprintf("%s: %.150s", s.state, why)
	}
}

// continues returns an error unless r can go on with the run before: of the same suite, agent and environment.
func (r *result) continues(before *result) error {
	was, is := *before, *r
	for _, v := range []*result{&was, &is} {
		v.Runs, v.NotRun = nil, 0
		v.Passed, v.Failed = nil, nil
	}
	if fmt.Sprint(was) != fmt.Sprint(is) {
		return fmt.Errorf("resume a run of another suite or environment: got %+v, want %+v", was, is)
	}
	return nil
}

// resume adds what came before to the result of a run that resumed it, in which the skipped specs skipped themselves: a
// spec that failed before and skips itself now does not apply to the machine.
func (r *result) resume(before *result, skipped []string) {
	r.Runs = append(before.Runs, r.Runs...)
	again := func(name string) bool { return slices.Contains(before.Passed, name) }
	r.Passed = append(before.Passed, slices.DeleteFunc(r.Passed, again)...)
	for _, name := range slices.Concat(r.Passed, skipped) {
		delete(before.Failed, name)
	}
	for name, why := range before.Failed {
		if _, again := r.Failed[name]; !again {
			r.Failed[name] = why
			r.NotRun = max(0, r.NotRun-1) // the time limit left it out of this run, but it has a result
		}
	}
}

// others are arguments of the runner that leave out the specs that have passed. The runner may have another number of
// spaces between the words of a name.
func (r *result) others() (args []string) {
	for _, name := range r.Passed {
		args = append(args, "--skip= "+strings.Join(strings.Fields(regexp.QuoteMeta(name)), " +")+"$")
	}
	return args
}

// file is the name under which a result is kept.
func (r *result) file() string {
	runtime, _, _ := strings.Cut(r.Runtime, " ")
	oci, _, _ := strings.Cut(r.OCIRuntime, " ")
	return strings.Join([]string{r.Suite, r.Agent, r.Cgroup, runtime, oci}, "-") + ".json"
}

func (r *result) write(file string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(r); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

func readResult(file string) (*result, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &result{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return r, nil
}

// keep stores a result among those of the matrix, in place of an older one. It must be of a suite, and of a commit.
func keep(file, dir string) error {
	r, err := readResult(file)
	if err != nil {
		return err
	}
	if suites[r.Suite].title == "" {
		return fmt.Errorf("keep %s: it has no suite: run without FOCUS, SKIP and LABEL", file)
	}
	for _, run := range r.Runs {
		if strings.Contains(run.AgentVersion, "dirty") {
			return fmt.Errorf("keep %s: the agent is %s: commit, build and run again", file, run.AgentVersion)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return r.write(filepath.Join(dir, r.file()))
}
