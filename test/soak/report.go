package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// report is what a run has seen. Its exported fields are what is kept.
type report struct {
	mu sync.Mutex

	Began      time.Time
	Took       time.Duration
	Seed       uint64
	Rounds     int
	Kills      int
	Pods       int64
	Faults     map[string]int
	Violations []string
	// Forgotten counts tasks and network namespaces that the runtime forgot; see forgottenTasks and
	// forgottenNamespaces.
	Forgotten int
	// First and Last are what the agent held after the first and the last round.
	First, Last agentUsage

	round int
	fault string
	notes []string
}

func newReport(o options) *report {
	return &report{Began: time.Now(), Seed: o.seed, Faults: map[string]int{}}
}

// begin notes that a round begins.
func (r *report) begin(round int, fault string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round, r.fault, r.notes = round, fault, nil
	r.Rounds++
	r.Faults[fault]++
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
	text := fmt.Sprintf("round %d (%s): ", r.round, r.fault) + fmt.Sprintf(format, args...)
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
	fmt.Printf("round %d (%s): the runtime forgot something that it made\n", r.round, r.fault)
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

// print prints the whole.
func (r *report) print() {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Printf("soak: seed %d: %d rounds in %s, %d pods, %d processes killed, %d violations\n", r.Seed, r.Rounds,
		time.Since(r.Began).Round(time.Second), r.Pods, r.Kills, len(r.Violations))
	var names []string
	for name := range r.Faults {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Printf("  %-18s %d rounds\n", name, r.Faults[name])
	}
	fmt.Printf("  agent: goroutines %d then %d, open files %d then %d, private memory %d then %d KiB\n",
		r.First.Goroutines, r.Last.Goroutines, r.First.Files, r.Last.Files, r.First.PrivateKiB, r.Last.PrivateKiB)
	fmt.Printf("  runtime: forgot %d tasks or network namespaces\n", r.Forgotten)
	for _, v := range r.Violations {
		fmt.Println("  VIOLATION", v)
	}
}

// save appends the report to the file of the options, if there is one.
func (r *report) save(o options) error {
	if o.out == "" {
		return nil
	}
	r.Took = time.Since(r.Began)
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(o.out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(append(line, '\n'))
	return err
}
