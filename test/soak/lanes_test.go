package main

import (
	"slices"
	"testing"

	"github.com/nodelet/nodelet/test/soak/record"
)

// TestLanesHoldEachFaultOnce compares the lanes with the faults: none is lost, and none is in two lanes.
func TestLanesHoldEachFaultOnce(t *testing.T) {
	s := &soak{opts: options{seed: 1}, profile: profile{perRound: 2, lanes: true}}
	s.makeLanes()
	count := map[string]int{}
	for _, l := range s.lanes {
		for range l.perRound {
			f := l.next()
			count[f.name]++
			if f.part != l.faults[0].part {
				t.Errorf("fault %s: got the lane of part %q, want that of its own part", f.name, l.faults[0].part)
			}
		}
	}
	for _, f := range s.selected() {
		if count[f.name] != 2 {
			t.Errorf("fault %s comes %d times in a round, want 2", f.name, count[f.name])
		}
	}
}

// TestEachFaultHasRun checks what docs/robustness.md says of the recorded runs: each fault that a profile injects comes
// a hundred times or more.
func TestEachFaultHasRun(t *testing.T) {
	runs, err := record.Read("runs.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, r := range runs {
		for name, n := range r.Faults {
			count[name] += n
		}
	}
	for _, p := range profiles {
		for _, f := range (&soak{opts: options{only: p.only}}).selected() {
			if count[f.name] < 100 {
				t.Errorf("fault %s: got it %d times in recorded runs, want 100: run make soak ONLY=%s, and append the new "+
					"line of bin/soak.jsonl to test/soak/runs.jsonl", f.name, count[f.name], f.name)
			}
		}
	}
}

// TestSeedDecidesOrder makes the lanes twice: the same seed gives the same faults in the same order, and another seed
// another order.
func TestSeedDecidesOrder(t *testing.T) {
	order := func(seed uint64) (names []string) {
		s := &soak{opts: options{seed: seed}, profile: profile{perRound: 2, lanes: true}}
		s.makeLanes()
		for _, l := range s.lanes {
			for range l.perRound {
				names = append(names, l.next().name)
			}
		}
		return names
	}
	if !slices.Equal(order(7), order(7)) {
		t.Error("seed 7: got two orders, want one")
	}
	if slices.Equal(order(7), order(8)) {
		t.Error("seeds 7 and 8: got the same order")
	}
}

// TestExclusions checks that each exclusion names two faults of different parts: those of one part never overlap.
func TestExclusions(t *testing.T) {
	parts := map[string]part{}
	for _, f := range faults {
		parts[f.name] = f.part
	}
	for _, e := range exclusions {
		a, knownA := parts[e.a]
		b, knownB := parts[e.b]
		if !knownA || !knownB || a == b {
			t.Errorf("exclusion of %s and %s: want two faults of different parts", e.a, e.b)
		}
		if !excludes(e.a, e.b) || !excludes(e.b, e.a) || excludes(e.a, e.a) {
			t.Errorf("exclusion of %s and %s: got none, want it both ways", e.a, e.b)
		}
	}
}

// TestGate lets two faults that exclude each other begin from two goroutines: they are never in progress together.
func TestGate(t *testing.T) {
	g := newGate()
	a, b := exclusions[0].a, exclusions[0].b
	g.enter(a)
	g.enter("none") // excludes nothing, so it does not wait
	began := make(chan bool)
	go func() {
		g.enter(b)
		g.mu.Lock()
		together := slices.Contains(g.active, a)
		g.mu.Unlock()
		began <- together
	}()
	g.leave(a)
	if <-began {
		t.Errorf("got %s begun while %s was in progress, want it to wait", b, a)
	}
	g.leave("none")
	g.leave(b)
	if len(g.active) > 0 {
		t.Errorf("faults in progress: got %v, want none", g.active)
	}
}

func TestEndOfAgent(t *testing.T) {
	for _, c := range []struct{ log, fault, crash string }{
		{"level=INFO msg=started\nnodelet: lock /x: read-only file system\n", "lock /x: read-only file system", ""},
		{"nodelet: open /x: input/output error: use another\n", "open /x: input/output error: use another", ""},
		{"nodelet: lock /x: read-only file system\nlevel=INFO msg=started\n", "", ""},
		{"nodelet: read the configuration: unknown field\n", "", ""},
		{"level=INFO msg=\"panic: in a message\"\n", "", ""},
		{"panic: nil map\n\ngoroutine 1 [running]:\n", "", "panic: nil map"},
		{"fatal error: concurrent map writes\n", "", "fatal error: concurrent map writes"},
		{"", "", ""},
	} {
		if got := faultOfFiles([]byte(c.log)); got != c.fault {
			t.Errorf("fault of files in %q: got %q, want %q", c.log, got, c.fault)
		}
		if got := crash([]byte(c.log)); got != c.crash {
			t.Errorf("crash in %q: got %q, want %q", c.log, got, c.crash)
		}
	}
}
