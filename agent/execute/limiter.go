package execute

import (
	"context"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// sandboxesPerCPU is how many sandboxes are created, and how many stopped, at a time for each CPU. More of them
	// would only slow each other down.
	sandboxesPerCPU = 4
	// callCounts is how long a call counts. A longer one waits for something else than the CPUs and must not keep
	// other pods from starting.
	callCounts = 2 * time.Second
	// volumeCounts is the same for a light volume that goes ahead: on a busy node many of them take longer than one.
	volumeCounts = 5 * time.Second
	// externalVolumeCounts is the same for a volume that a claim provides: it is light if its disk is attached, and
	// otherwise soon no longer counted.
	externalVolumeCounts = 500 * time.Millisecond
	// publishesPerCPU is how many volumes CSI drivers publish at a time for each CPU, and publishCounts how long one
	// counts: a slow driver must hardly delay the volumes of others.
	publishesPerCPU = 2
	publishCounts   = 100 * time.Millisecond
	// largeAtOnce is how many large containers are created at a time. Each takes several times its configuration of
	// memory until the runtime has answered: a few pods of many such containers would get the agent killed.
	largeAtOnce = 4
)

// limiters keep many pods that start or end at once from slowing each other down. All workers share them.
type limiters struct {
	// create and stop are for RunPodSandbox and StopPodSandbox. Volumes go ahead of create: they are light, and
	// containers wait for both. Meanwhile one sandbox for two CPUs is created, so that the CPUs are not idle while the
	// API server is waited for.
	create, stop *limiter
	// publish is for volumes of CSI drivers.
	publish *limiter
	// large is for CreateContainer of large containers. A call counts until it ends.
	large *limiter
	// remove is for RemovePodSandbox, for which nothing waits: one at a time, so that it delays the others little.
	remove *limiter
}

func newLimiters() *limiters {
	cpus := runtime.NumCPU()
	wide := sandboxesPerCPU * cpus
	return &limiters{
		create:  newLimiter(wide, max(1, cpus/2), callCounts),
		stop:    newLimiter(wide, wide, callCounts),
		publish: newLimiter(publishesPerCPU*cpus, publishesPerCPU*cpus, publishCounts),
		large:   newLimiter(largeAtOnce, largeAtOnce, math.MaxInt64),
		remove:  newLimiter(1, 1, callCounts),
	}
}

// limiter limits how many heavy calls run at a time, in the order in which they come. When many pods start at once, the
// first are ready long before the last, and none later than without it.
type limiter struct {
	// wide is how many calls run at a time, narrow how many while lighter calls that go ahead run.
	wide, narrow int
	// countFor is how long a call counts.
	countFor time.Duration

	mu            sync.Mutex
	inside, ahead int
	queue         []chan struct{} // one for each waiting call; closed when it may begin
}

func newLimiter(wide, narrow int, countFor time.Duration) *limiter {
	return &limiter{wide: wide, narrow: narrow, countFor: countFor}
}

// do waits for a place and makes the call.
func (g *limiter) do(ctx context.Context, call func() error) error {
	if err := g.enter(ctx); err != nil {
		return err
	}
	return whileItCounts(g.countFor, func() { g.count(&g.inside, -1) }, call)
}

// yield makes a light call at once. Until it ends, but no longer than countFor, fewer heavy calls run.
func (g *limiter) yield(countFor time.Duration, call func() error) error {
	g.count(&g.ahead, 1)
	return whileItCounts(countFor, func() { g.count(&g.ahead, -1) }, call)
}

// whileItCounts makes a call, and calls over when it has ended or after countFor.
func whileItCounts(countFor time.Duration, over func(), call func() error) error {
	over = sync.OnceFunc(over)
	defer over()
	defer time.AfterFunc(countFor, over).Stop()
	return call()
}

// enter waits for a place, or for the end of ctx.
func (g *limiter) enter(ctx context.Context) error {
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
	} else { // it got its place at the same moment
		g.inside--
		g.admit()
	}
	return ctx.Err()
}

// count changes one of the numbers, and admits the calls for which there is a place now.
func (g *limiter) count(n *int, by int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	*n += by
	g.admit()
}

// admit lets the next calls begin. The caller holds the lock.
func (g *limiter) admit() {
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
