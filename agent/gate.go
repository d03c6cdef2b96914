package agent

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// sandboxesPerCPU is how many sandboxes are made, and how many stopped, at a time for each CPU: more of them only
	// get in each other's way.
	sandboxesPerCPU = 4
	// gatePatience is how long a call counts. One that takes longer waits for something else than the CPUs, and must not
	// keep other pods from starting.
	gatePatience = 2 * time.Second
	// aheadPatience is the same for a light volume that goes ahead: on a busy node many of them take longer than one.
	aheadPatience = 5 * time.Second
	// claimPatience is the same for one behind a claim: light where its disk is attached and its driver has little to
	// do, and else soon no longer counted.
	claimPatience = 500 * time.Millisecond
	// publishesPerCPU is how many volumes are handed to CSI drivers at a time for each CPU, and publishPatience how long
	// one counts: a driver may well be slow, and another's volumes must hardly notice.
	publishesPerCPU = 2
	publishPatience = 100 * time.Millisecond
)

// gates keep many pods that come or go at once from slowing each other down. All workers share them.
type gates struct {
	// create and stop are for RunPodSandbox and StopPodSandbox. Volumes go ahead of create: they are light, and
	// containers wait for both. One sandbox for two CPUs is made meanwhile, so that nothing lies idle while the API
	// server is waited for.
	create, stop *gate
	// publish is for volumes of CSI drivers.
	publish *gate
	// remove is for RemovePodSandbox, which nobody waits for: one at a time, so that it takes little from those who do.
	remove *gate
}

func newGates() *gates {
	cpus := runtime.NumCPU()
	wide := sandboxesPerCPU * cpus
	return &gates{create: newGate(wide, max(1, cpus/2), gatePatience), stop: newGate(wide, wide, gatePatience),
		publish: newGate(publishesPerCPU*cpus, publishesPerCPU*cpus, publishPatience), remove: newGate(1, 1, gatePatience)}
}

// gate lets a number of heavy calls run side by side, in the order in which they come. When many pods start at once,
// the first are ready long before the last, and none later than without it.
type gate struct {
	// wide is how many calls run at a time, narrow how many while lighter ones that go ahead of them are under way.
	wide, narrow int
	// patience is how long a call counts.
	patience time.Duration

	mu            sync.Mutex
	inside, ahead int
	queue         []chan struct{} // of the calls that wait; closed for those that may begin
}

func newGate(wide, narrow int, patience time.Duration) *gate {
	return &gate{wide: wide, narrow: narrow, patience: patience}
}

// pass waits for a place and makes the call.
func (g *gate) pass(ctx context.Context, call func() error) error {
	if err := g.enter(ctx); err != nil {
		return err
	}
	return whileItCounts(g.patience, func() { g.count(&g.inside, -1) }, call)
}

// goAhead makes a light call at once, and keeps the heavy ones few meanwhile, as long as patience lasts.
func (g *gate) goAhead(patience time.Duration, call func() error) error {
	g.count(&g.ahead, 1)
	return whileItCounts(patience, func() { g.count(&g.ahead, -1) }, call)
}

// whileItCounts makes a call; when it has ended, or patience with it, it is over.
func whileItCounts(patience time.Duration, over func(), call func() error) error {
	over = sync.OnceFunc(over)
	defer over()
	defer time.AfterFunc(patience, over).Stop()
	return call()
}

// enter waits for a place, or for the end of ctx.
func (g *gate) enter(ctx context.Context) error {
	turn := make(chan struct{})
	g.mu.Lock()
	g.queue = append(g.queue, turn)
	g.admit()
	g.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.queue, turn); i >= 0 {
		g.queue = slices.Delete(g.queue, i, i+1)
	} else { // its turn came at the same moment
		g.inside--
		g.admit()
	}
	return ctx.Err()
}

// count adds to one of the numbers, and lets in those for whom there is a place now.
func (g *gate) count(n *int, by int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	*n += by
	g.admit()
}

// admit lets the next calls in. The caller holds the lock.
func (g *gate) admit() {
	places := g.wide
	if g.ahead > 0 {
		places = g.narrow
	}
	for len(g.queue) > 0 && g.inside < places {
		close(g.queue[0])
		g.queue = g.queue[1:]
		g.inside++
	}
}
