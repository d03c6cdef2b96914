package agent

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const (
	// sandboxesPerCPU is how many sandboxes are made, and how many stopped, at a time for each CPU: more of them only get in
	// each other's way.
	sandboxesPerCPU = 4
	// gatePatience is how long a call counts. One that takes longer waits for something else than the CPUs, and must not keep
	// other pods from starting.
	gatePatience = 2 * time.Second
)

// gates keep many pods that come or go at once from slowing each other down. All workers share them.
type gates struct {
	// create and stop are for RunPodSandbox and StopPodSandbox.
	create, stop gate
	// remove is for RemovePodSandbox, which nobody waits for: one at a time, so that it takes little from those who do.
	remove gate
}

func newGates() *gates {
	n := sandboxesPerCPU * runtime.NumCPU()
	return &gates{create: make(gate, n), stop: make(gate, n), remove: make(gate, 1)}
}

// gate lets a number of heavy calls run side by side, in the order in which they come. When many pods start at once, the
// first are ready long before the last, and none later than without it.
type gate chan struct{}

// pass waits for a place and makes the call.
func (g gate) pass(ctx context.Context, call func() error) error {
	select {
	case g <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	leave := sync.OnceFunc(func() { <-g })
	defer leave()
	patience := time.AfterFunc(gatePatience, leave)
	defer patience.Stop()
	return call()
}
