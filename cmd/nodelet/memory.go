package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"
)

const (
	// gcPercent trades a little CPU in bursts for a heap that is a third smaller than with Go's default of 100.
	gcPercent = 50
	// trimEvery is how often the agent looks whether it holds memory that it does not need; trimAbove is how much of that
	// makes giving it back worth a collection.
	trimEvery = 20 * time.Second
	trimAbove = 1 << 20
)

// boundMemory keeps the heap small, and memory profiles off until they are requested. GOGC, and memprofilerate in
// GODEBUG, take precedence.
func boundMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if !strings.Contains(os.Getenv("GODEBUG"), "memprofilerate=") {
		runtime.MemProfileRate = 0
	}
}

// trim gives the memory that a burst of pods took back to the kernel when the burst is over.
func trim(ctx context.Context) {
	free := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(trimEvery):
		}
		metrics.Read(free)
		if free[0].Value.Uint64() > trimAbove {
			runtime.GC() // what pools keep outlives one collection
			debug.FreeOSMemory()
		}
	}
}
