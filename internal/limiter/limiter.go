// Package limiter limits how many heavy calls run at a time.
//
// It never decides what is heavy: packages call it whose calls slow each other down, or take much memory. A crash
// leaves nothing behind.
package limiter

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Limiter limits how many heavy calls run at a time, in the order in which they come. When many pods start at once, the
// first are ready long before the last, and none later than without it. Create one with New.
type Limiter struct {
	wide, narrow int
	countFor     time.Duration

	mu            sync.Mutex
	inside, ahead int
	queue         []chan struct{} // one for each waiting call; closed when it may begin
}

// New returns a Limiter that lets wide calls run at a time, and narrow ones while lighter calls that go ahead run. A
// call counts no longer than countFor.
func New(wide, narrow int, countFor time.Duration) *Limiter {
	return &Limiter{wide: wide, narrow: narrow, countFor: countFor}
}

// Do waits for a place and makes the call.
func (g *Limiter) Do(ctx context.Context, call func() error) error {
	if err := g.enter(ctx); err != nil {
		return err
	}
	return WhileItCounts(g.countFor, func() { g.count(&g.inside, -1) }, call)
}

// Yield makes a light call at once. Until it ends, but no longer than countFor, fewer heavy calls run.
func (g *Limiter) Yield(countFor time.Duration, call func() error) error {
	g.count(&g.ahead, 1)
	return WhileItCounts(countFor, func() { g.count(&g.ahead, -1) }, call)
}

// WhileItCounts makes a call, and calls over once: when the call has ended, or after countFor, so that others do not
// wait for one that hangs.
func WhileItCounts(countFor time.Duration, over func(), call func() error) error {
	over = sync.OnceFunc(over)
	defer over()
	defer time.AfterFunc(countFor, over).Stop()
	return call()
}

// enter waits for a place, or for the end of ctx.
func (g *Limiter) enter(ctx context.Context) error {
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
func (g *Limiter) count(n *int, by int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	*n += by
	g.admit()
}

// admit lets the next calls begin. The caller holds the lock.
func (g *Limiter) admit() {
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
