package main

import (
	"context"
	"fmt"
	"math"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodelet/nodelet/test/soak/record"
)

// report is what a run has seen.
type report struct {
	mu sync.Mutex

	Began      time.Time
	Rounds     int
	Killed     map[string]int // SIGKILLs by kind of process
	Pods       int64
	Faults     map[string]int
	Violations []string
	// Forgotten counts what the runtime forgot; see forgottenTasks and forgottenResources.
	Forgotten int
	// First and Last are what the agent held after the first and the last round.
	First, Last agentUsage

	round  int
	faults []string // of this round
	notes  []string
}

func newReport() *report { return &report{Killed: map[string]int{}, Faults: map[string]int{}} }

// begin notes that a round begins.
func (r *report) begin(round int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round = round
	r.faults, r.notes = nil, nil
	r.Rounds++
}

// inject notes that a fault is injected in the round.
func (r *report) inject(fault string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fault)
	r.Faults[fault]++
}

// injected reports whether the round has injected a fault.
func (r *report) injected(fault string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.faults, fault)
}

// undisturbing are faults beside which a Ready pod must stay Ready all the time: the agent ends, and starts again at
// once.
var undisturbing = []string{"none", "agent-kills", "agent-killed-often", "agent-restarts"}

// mustStayReady reports whether the round has injected no fault that may make a steady pod not Ready for a while.
func (r *report) mustStayReady() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !slices.ContainsFunc(r.faults, func(name string) bool { return !slices.Contains(undisturbing, name) })
}

// killed notes that a process was killed.
func (r *report) killed(process string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Killed[process]++
}

// end prints a line about a round.
func (r *report) end(round int, took time.Duration, pods int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Printf("round %d: %-18s %s, %d pods so far, %d kills, %d violations\n", round, strings.Join(r.faults, ","),
		took.Round(time.Second), pods, record.Run{Killed: r.Killed}.Kills(), len(r.Violations))
}

// note keeps a detail of the round, for the violations that may follow.
func (r *report) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// violate notes that an invariant does not hold, and prints it.
func (r *report) violate(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf("round %d (%s): ", r.round, strings.Join(r.faults, ",")) + fmt.Sprintf(format, args...)
	if len(r.notes) > 0 {
		text += " [" + strings.Join(r.notes, "; ") + "]"
	}
	r.Violations = append(r.Violations, text)
	fmt.Println(time.Now().Format(time.TimeOnly), "VIOLATION", text)
}

// forgot notes that the runtime forgot something.
func (r *report) forgot() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Forgotten++
	fmt.Printf("round %d (%s): the runtime forgot something that it made\n", r.round, strings.Join(r.faults, ","))
}

// usage notes what the agent holds after a round.
func (r *report) usage(u agentUsage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.First == (agentUsage{}) {
		r.First = u
	}
	r.Last = u
}

// run returns what is recorded of the run. commit is that of the agent under test.
func (r *report) run(o options, commit string) record.Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return record.Run{
		Date:       r.Began.UTC().Format(time.DateOnly),
		Commit:     commit,
		Profile:    o.profile,
		Network:    o.network,
		Seed:       o.seed,
		Minutes:    math.Round(time.Since(r.Began).Minutes()*10) / 10,
		Rounds:     r.Rounds,
		Pods:       r.Pods,
		Killed:     r.Killed,
		Faults:     r.Faults,
		Violations: len(r.Violations),
		Forgotten:  r.Forgotten,
	}
}

// print prints the whole.
func (r *report) print(o options) {
	fmt.Print(record.Table([]record.Run{r.run(o, "")}))
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Printf("agent: goroutines %d then %d, open files %d then %d, private memory %d then %d KiB\n",
		r.First.Goroutines, r.Last.Goroutines, r.First.Files, r.Last.Files, r.First.PrivateKiB, r.Last.PrivateKiB)
	fmt.Printf("runtime: forgot %d tasks, network namespaces or addresses\n", r.Forgotten)
	for _, v := range r.Violations {
		fmt.Println("VIOLATION", v)
	}
}

// save appends the run to the file of the options, if there is one.
func (r *report) save(o options, commit string) error {
	if o.record == "" {
		return nil
	}
	return record.Append(o.record, r.run(o, commit))
}

// head returns the commit of the working directory, with "-dirty" if it has changes.
func head(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
