package self

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/periodic"
)

const (
	// gcPercent trades a little CPU in bursts for a heap that is a third smaller than with Go's default of 100.
	gcPercent = 50
	// Trim looks every lookAtWork whether the agent has come to rest, and every lookAtRest whether it still rests.
	lookAtWork = 5 * time.Second
	lookAtRest = 20 * time.Second
	// restTime is the time in which an agent at rest allocates less than its live heap.
	restTime = 40 * time.Second
	// trimAbove is the least garbage that is worth the collections, which cost some milliseconds of CPU.
	trimAbove = 4 << 20
	// heapPercent is the share of the memory limit that Go may use. The rest is for what the kernel and programs that
	// the agent runs need.
	heapPercent = 85
)

// BoundMemory keeps the heap small, and memory profiles off until they are requested. GOGC, and memprofilerate in
// GODEBUG, take precedence.
func BoundMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if !strings.Contains(os.Getenv("GODEBUG"), "memprofilerate=") {
		runtime.MemProfileRate = 0
	}
}

// Protect keeps the kernel from killing the agent before pods, and the heap below the limit of the agent's cgroup: near
// it, the garbage collector works more, and the agent is not killed for memory that it no longer uses. GOMEMLIMIT takes
// precedence. Nothing of it is worth a refusal to start.
func Protect(oomScoreAdj int, log *slog.Logger) {
	if err := setOOMScoreAdj(ownScore, oomScoreAdj); err != nil {
		log.Warn("cannot set the OOM score of the agent, the kernel may kill it before pods", "want", oomScoreAdj, "err", err)
	}
	limit, err := memoryLimit()
	if err != nil {
		log.Warn("cannot read the memory limit of the agent, the garbage collector ignores it", "err", err)
	}
	if limitHeap(limit) {
		log.Info("memory of the agent is limited", "bytes", limit)
	}
}

// limitHeap keeps what Go uses below a memory limit, in bytes; 0 is none. It reports whether it did.
func limitHeap(limit int64) bool {
	if limit <= 0 || os.Getenv("GOMEMLIMIT") != "" {
		return false
	}
	debug.SetMemoryLimit(limit / 100 * heapPercent)
	return true
}

// Trim collects garbage and gives the freed memory back to the kernel whenever the agent comes to rest, and lets sysmon
// rest as well, until ctx ends. Without it, the garbage of the last burst of pods would stay: an agent at rest
// allocates so little that the next collection is hours away.
func Trim(ctx context.Context, sysmon *Sysmon) {
	now := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/sched/goroutines:goroutines"},
	}
	var t trimmer
	every := lookAtWork
	for {
		wait := periodic.Until(every)
		if !backoff.Sleep(ctx, wait) {
			return
		}
		metrics.Read(now)
		atRest, due := t.look(now[0].Value.Uint64(), now[1].Value.Uint64(), now[2].Value.Uint64(), wait)
		if due {
			for range 3 { // each halves unused stacks, and what pools keep outlives one
				runtime.GC()
			}
			debug.FreeOSMemory()
		}
		every = lookAtWork
		if atRest {
			every = lookAtRest
			sysmon.Rest()
		}
	}
}

// trimmer decides when to trim. seen and trimmed are bytes allocated since the start of the program: at the last look,
// and at the last trim. goroutines is their number at the last trim.
type trimmer struct {
	seen       uint64
	trimmed    uint64
	goroutines uint64
}

// look reports whether the agent is at rest, because it allocated little since the last look, which was so long ago,
// and whether it is to be trimmed, because it allocated much since the last trim, or because many goroutines have
// ended: what they held, such as the buffers of connections, is garbage without an allocation. What is little and much
// depends on the number of pods, as live does, the bytes that the last collection has left: an agent at rest still
// lists all its pods. allocated is the bytes allocated since the start.
func (t *trimmer) look(allocated, live, goroutines uint64, ago time.Duration) (atRest, due bool) {
	atRest = float64(allocated-t.seen) < float64(live)*ago.Seconds()/restTime.Seconds()
	t.seen = allocated
	fewer := goroutines < t.goroutines-t.goroutines/4
	if !atRest || allocated-t.trimmed < max(trimAbove, live) && !fewer {
		return atRest, false
	}
	t.trimmed, t.goroutines = allocated, goroutines
	return true, true
}
