package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nodelet/nodelet/test/testbed"
)

// part is what a fault changes. Two faults of one part would undo each other, so they never overlap.
type part string

const (
	partNone         part = ""
	partAgent        part = "agent"         // its process
	partRuntime      part = "runtime"       // its process
	partCalls        part = "calls"         // between agent and runtime
	partControlPlane part = "control plane" // its processes
	partNetwork      part = "network"       // between agent and API server
	partFiles        part = "files"         // the file system of the agent's root directory, and inotify
	partClock        part = "clock"         // as the agent sees it
	partPlugins      part = "plugins"       // their processes
)

// exclusion is a pair of faults of different parts that never overlap.
type exclusion struct{ a, b, reason string }

var exclusions = []exclusion{
	{"files-damaged", "disk-full", "the soak test could not write the damaged file"},
	{"files-damaged", "inodes-full", "the soak test could not write the damaged file"},
	{"etcd-restored", "api-lags", "a restore restarts all API servers, so no cache holds what it has undone"},
	{"etcd-restored-unseen", "api-lags", "a restore restarts all API servers, so no cache holds what it has undone"},
}

// excludes reports whether faults a and b must not overlap.
func excludes(a, b string) bool {
	for _, e := range exclusions {
		if e.a == a && e.b == b || e.a == b && e.b == a {
			return true
		}
	}
	return false
}

// lane is a sequence of faults, one after the other. Lanes go on beside each other; each has its own choices.
type lane struct {
	*soak
	rand   *rand.Rand
	faults []fault
	// perRound is how many faults it injects in a round.
	perRound int
	// order are the faults still to come before all have come once more.
	order []fault
}

// makeLanes makes one lane of all selected faults, or one for each part.
func (s *soak) makeLanes() {
	all := s.selected()
	s.gate = newGate()
	if !s.profile.lanes {
		s.lanes = []*lane{{soak: s, rand: seeded(s.opts.seed, 0), faults: all, perRound: s.profile.perRound}}
		return
	}
	for i, of := range byPart(all) {
		s.lanes = append(s.lanes, &lane{
			soak:     s,
			rand:     seeded(s.opts.seed, firstLane+uint64(i)),
			faults:   of,
			perRound: s.profile.perRound * len(of),
		})
	}
}

// firstLane is the sequence of random numbers of the first lane. Those before it are used by the churn.
const firstLane = 1 << 32

func seeded(seed, sequence uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, sequence)) }

// byPart groups faults by their part, in the order in which the parts appear.
func byPart(all []fault) (groups [][]fault) {
	index := map[part]int{}
	for _, f := range all {
		i, known := index[f.part]
		if !known {
			i = len(groups)
			index[f.part] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], f)
	}
	return groups
}

// round injects the lane's faults of a round.
func (l *lane) round(ctx context.Context) {
	for range l.perRound {
		l.wait(ctx, l.between(200*time.Millisecond, 3*time.Second))
		l.once(ctx, l.next())
	}
}

// next deals the faults like cards: all of them once in a random order, and again.
func (l *lane) next() fault {
	if len(l.order) == 0 {
		l.order = slices.Clone(l.faults)
		l.rand.Shuffle(len(l.order), func(i, j int) { l.order[i], l.order[j] = l.order[j], l.order[i] })
	}
	f := l.order[0]
	l.order = l.order[1:]
	return f
}

// once injects one fault, and starts processes that have ended.
func (l *lane) once(ctx context.Context, f fault) {
	l.gate.enter(f.name)
	defer l.gate.leave(f.name)
	l.inject(ctx, f)
	if err := l.revive(ctx); err != nil && ctx.Err() == nil {
		l.report.violate("return to normal after %s: %v", f.name, err)
	}
}

// inject injects one fault as the only lane that is at work on its part.
func (l *lane) inject(ctx context.Context, f fault) {
	l.gate.owners[f.part].Lock()
	defer l.gate.owners[f.part].Unlock()
	if ctx.Err() != nil {
		return
	}
	l.report.inject(f.name)
	err := f.inject(ctx, l)
	if err == nil || ctx.Err() != nil {
		return
	}
	if end := l.gaveUp(); end != "" && f.part == partAgent {
		l.report.note("the agent ended during %s: %s", f.name, end)
		return
	}
	l.report.violate("inject %s: %v", f.name, err)
}

// revive starts agent and runtime if they have ended, as systemd would, unless a lane is at work on them.
func (l *lane) revive(ctx context.Context) error {
	for _, p := range []struct {
		part  part
		pid   func() int
		start func() error
	}{
		{partRuntime, l.node.Runtime.PID, func() error { return l.node.Runtime.Start(ctx) }},
		{partAgent, l.node.AgentPID, func() error { return l.node.StartAgent(ctx, testbed.Nodelet) }},
	} {
		if !l.gate.owners[p.part].TryLock() {
			continue
		}
		var err error
		if p.pid() == 0 {
			err = p.start()
		}
		l.gate.owners[p.part].Unlock()
		if err != nil {
			return fmt.Errorf("start the %s: %w", p.part, err)
		}
	}
	return nil
}

// between draws a duration, which is shorter in a dense profile.
func (l *lane) between(least, most time.Duration) time.Duration {
	d := least + time.Duration(l.rand.Int64N(int64(most-least)))
	return time.Duration(float64(d) * l.profile.pace)
}

// gate lets a fault begin when no fault that excludes it is in progress.
type gate struct {
	// owners are locked while a lane is at work on a part.
	owners map[part]*sync.Mutex

	mu      sync.Mutex
	changed *sync.Cond
	active  []string
}

func newGate() *gate {
	g := &gate{owners: map[part]*sync.Mutex{}}
	for _, f := range faults {
		g.owners[f.part] = &sync.Mutex{}
	}
	g.changed = sync.NewCond(&g.mu)
	return g
}

// enter waits until the fault may begin.
func (g *gate) enter(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for slices.ContainsFunc(g.active, func(other string) bool { return excludes(name, other) }) {
		g.changed.Wait()
	}
	g.active = append(g.active, name)
}

// leave says that the fault has ended.
func (g *gate) leave(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.active, name)
	g.active = slices.Delete(g.active, i, i+1)
	g.changed.Broadcast()
}
