package agent

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const (
	// gateWidth is how many sandboxes are made at a time, for each CPU: more of them only get in each other's way.
	gateWidth = 4
	// gatePatience is how long a call counts. One that takes longer waits for something else than the CPUs, and must not keep
	// other pods from starting.
	gatePatience = 2 * time.Second
)

// gate lets a number of heavy calls run side by side, in the order in which they come. When many pods start at once, the
// first are ready long before the last, and none later than without it.
type gate chan struct{}

func newGate() gate { return make(gate, gateWidth*runtime.NumCPU()) }

// enter waits for a place and returns how to give it back.
func (g gate) enter(ctx context.Context) (leave func(), err error) {
	select {
	case g <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	release := sync.OnceFunc(func() { <-g })
	patience := time.AfterFunc(gatePatience, release)
	return func() { patience.Stop(); release() }, nil
}
