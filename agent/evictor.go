package agent

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/eviction"
)

const (
	// levelsEvery is how often the node's levels are read though the kernel says nothing, as with the kubelet.
	levelsEvery = 10 * time.Second
	// hardGrace is what a pod gets that must go at once.
	hardGrace = time.Second
	// evictionPatience is how long the next eviction waits for an evicted pod to give back what it held.
	evictionPatience = 30 * time.Second
)

// EvictorConfig is what an Evictor needs.
type EvictorConfig struct {
	Thresholds []eviction.Threshold
	// Transition is how long a condition outlives its cause; MaxGrace caps the grace of pods at a soft threshold, negative for
	// no cap.
	Transition, MaxGrace time.Duration
	// Levels reads how much is left, by signal; what cannot be read is left out.
	Levels func(ctx context.Context) map[string]eviction.Level
	// Use measures what pods use of what a signal is about.
	Use func(ctx context.Context, signal string, pods []*corev1.Pod) []eviction.Pod
	// Storage measures what these pods take of the node's disk, in their order; nil where their limits do not count.
	Storage func(ctx context.Context, pods []*corev1.Pod) ([]eviction.Storage, error)
	// Reclaim frees disk space that no pod needs.
	Reclaim func(ctx context.Context) error
	// WatchMemory calls back each time memory runs short, until ctx ends. An error at once: nobody can tell.
	WatchMemory func(ctx context.Context, short func()) error
	// Tell is told the pressure when it has changed.
	Tell func(eviction.Pressure)
	// Event records an event about the node.
	Event func(eventType, reason, message string)
	Log   *slog.Logger
}

// Evictor ends pods when the node runs short, and those that take more of its disk than they may. What it remembers belongs to
// the goroutine that watches the levels.
type Evictor struct {
	EvictorConfig
	pods     *Supervisor
	state    eviction.State
	pressure atomic.Pointer[eviction.Pressure]
}

// NewEvictor makes an evictor of the supervisor's pods.
func NewEvictor(pods *Supervisor, cfg EvictorConfig) *Evictor {
	e := &Evictor{EvictorConfig: cfg, pods: pods}
	e.pressure.Store(&eviction.Pressure{})
	return e
}

// Pressure is what runs short now. Anybody may ask.
func (e *Evictor) Pressure() eviction.Pressure { return *e.pressure.Load() }

// Run watches the levels, and beside them the limits of pods, until ctx ends. Without thresholds it reads no levels.
func (e *Evictor) Run(ctx context.Context) {
	if e.Storage != nil {
		var limits sync.WaitGroup
		limits.Go(func() { e.watchLimits(ctx) })
		defer limits.Wait()
	}
	if len(e.Thresholds) > 0 {
		e.watchLevels(ctx)
	}
}

func (e *Evictor) watchLevels(ctx context.Context) {
	short := make(chan struct{}, 1)
	if e.onMemory() {
		go func() {
			err := e.WatchMemory(ctx, func() {
				select {
				case short <- struct{}{}:
				default:
				}
			})
			if ctx.Err() == nil {
				e.Log.Info("memory is looked at now and then, for the kernel does not tell when it runs short", "why", err, "every", levelsEvery)
			}
		}()
	}
	for {
		again, evicted := e.look(ctx)
		if evicted {
			continue // the levels have moved
		}
		select {
		case <-ctx.Done():
			return
		case <-short:
		case <-time.After(again):
		}
	}
}

func (e *Evictor) onMemory() bool {
	for i := range e.Thresholds {
		if s := e.Thresholds[i].Signal; s == eviction.MemoryAvailable || s == eviction.AllocatableAvailable {
			return true
		}
	}
	return false
}

// look judges the levels once and does what follows. It gives when to look again, and whether a pod has gone.
func (e *Evictor) look(ctx context.Context) (again time.Duration, evicted bool) {
	levels := e.Levels(ctx)
	var v eviction.Verdict
	now := time.Now()
	v, e.state = eviction.Judge(e.Thresholds, levels, e.state, e.Transition, now)
	if v.Pressure != e.Pressure() {
		e.Log.Info("pressure on the node has changed", "memory", v.Pressure.Memory, "disk", v.Pressure.Disk, "pid", v.Pressure.PID)
		e.pressure.Store(&v.Pressure)
		e.Tell(v.Pressure)
	}
	again = levelsEvery
	if !v.Again.IsZero() {
		again = min(again, max(0, v.Again.Sub(now)))
	}
	return again, v.Act != nil && e.free(ctx, v.Act, levels)
}

// free brings a level up: by what nobody needs, and where that is not enough by ending one pod. It tells whether a pod went.
func (e *Evictor) free(ctx context.Context, t *eviction.Threshold, levels map[string]eviction.Level) bool {
	e.Log.Warn("the node runs short", "signal", t.Signal, "available", levels[t.Signal].Available, "capacity", levels[t.Signal].Capacity)
	e.Event(corev1.EventTypeWarning, "EvictionThresholdMet", eviction.Attempt(t))
	if eviction.OnDisk(t.Signal) {
		if err := e.Reclaim(ctx); err != nil {
			e.Log.Warn("cannot free all that nobody needs", "err", err)
		}
		if levels = e.Levels(ctx); eviction.Over(t, levels) {
			return false
		}
	}
	for _, pod := range eviction.Rank(t.Signal, e.Use(ctx, t.Signal, e.running(ctx))) {
		e.evict(ctx, t, levels, pod)
		return true
	}
	e.Log.Warn("the node runs short and no pod can be evicted", "signal", t.Signal)
	return false
}

// running are the pods whose end would give something back.
func (e *Evictor) running(ctx context.Context) (all []*corev1.Pod) {
	for _, pod := range e.pods.Active(ctx) {
		if pod.DeletionTimestamp == nil && len(pod.Spec.Containers) > 0 && !finished(pod) {
			all = append(all, pod)
		}
	}
	return all
}

// evict ends a pod and waits until it has given back what it held.
func (e *Evictor) evict(ctx context.Context, t *eviction.Threshold, levels map[string]eviction.Level, pod eviction.Pod) {
	message := eviction.Message(t, levels, pod)
	grace := hardGrace
	if t.Grace > 0 {
		if grace = e.MaxGrace; grace < 0 {
			grace = math.MaxInt64
		}
	}
	released := e.end(ctx, pod.Pod, t.Signal, Eviction{Reason: eviction.Reason, Message: message, Grace: grace})
	select {
	case <-released:
	case <-time.After(evictionPatience):
		e.Log.Warn("an evicted pod still holds what it held", "pod", pod.Namespace+"/"+pod.Name, "after", evictionPatience)
	case <-ctx.Done():
	}
}

// end begins to end a pod, and tells people.
func (e *Evictor) end(ctx context.Context, pod *corev1.Pod, signal string, why Eviction) (released <-chan struct{}) {
	e.Log.Warn("a pod is evicted", "pod", pod.Namespace+"/"+pod.Name, "why", why.Message, "grace", why.Grace)
	e.pods.hands.Events.Event(podReference(pod, ""), corev1.EventTypeWarning, why.Reason, why.Message)
	e.pods.hands.meter().Evicted(signal)
	return e.pods.Evict(ctx, pod.UID, why)
}
