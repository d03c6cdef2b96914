package eviction

import (
	"context"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/eviction/policy"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/internal/periodic"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

const (
	// hardGrace is the grace period of a pod that is evicted at a hard threshold or for its own excess.
	hardGrace = time.Second
	// releaseTimeout is how long the next eviction waits for an evicted pod to release its resources.
	releaseTimeout = 30 * time.Second
	// silence is how long a runtime that works answers nothing at most: it is asked for its status every ten seconds.
	silence = 15 * time.Second
	// reclaimTimeout is how long an eviction for disk waits for the containers of ended pods to be removed.
	reclaimTimeout = 2 * time.Minute
)

// watch evaluates the thresholds of one kind and acts on them, in a goroutine of its own.
type watch struct {
	*Evictor
	thresholds []policy.Threshold
	levels     func(context.Context) (all map[string]policy.Level, complete bool)
	state      policy.State
	// stuck are the pods that were evicted and have not released their resources in time: the next eviction does not
	// choose them again.
	stuck map[types.UID]bool
	// answersFrom is shortly before the last of them was passed over. Before the runtime has answered a call after that,
	// no other pod would end either.
	answersFrom time.Time
	// soft is the last eviction at a soft threshold.
	soft softEviction
	// pressure is what this watch has found; looked: it has found all levels once. Evictor.mu guards both.
	pressure policy.Pressure
	looked   bool
}

// leaving is an evicted pod: released is closed when it has released its resources, which should be so before overdue.
type leaving struct {
	released <-chan struct{}
	overdue  time.Time
}

// softEviction is the eviction of a pod that may use its grace period.
type softEviction struct {
	leaving
	pod *corev1.Pod
}

func (w *watch) run(ctx context.Context) {
	short := latest.NewSignal()
	if w.onMemory() {
		go w.watchMemory(ctx, short)
	}
	for {
		again, evicted := w.look(ctx)
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

func (w *watch) onMemory() bool {
	return slices.ContainsFunc(w.thresholds, func(t policy.Threshold) bool { return policy.OnMemory(t.Signal) })
}

// watchMemory signals when the kernel says that memory runs short.
func (w *watch) watchMemory(ctx context.Context, short latest.Signal) {
	err := w.cfg.Node.WatchMemory(ctx, short.Set)
	if ctx.Err() == nil {
		w.cfg.Log.Info("the kernel does not notify of memory pressure, reading the level at intervals",
			"err", err, "interval", levelsEvery)
	}
}

// look evaluates the levels once and acts on them. It returns when to look again, and whether a pod has been evicted.
func (w *watch) look(ctx context.Context) (again time.Duration, evicted bool) {
	levels, complete := w.levels(ctx)
	now := time.Now()
	var v policy.Decision
	v, w.state = policy.Evaluate(w.thresholds, levels, w.state, w.cfg.Transition, now)
	w.publish(w, v.Pressure, complete)
	again = periodic.Until(levelsEvery)
	if !v.Again.IsZero() {
		again = min(again, max(0, v.Again.Sub(now)))
	}
	return again, v.Act != nil && w.free(ctx, v.Act, levels)
}

// free brings a level up: on disks by removing what no pod needs, and where that is not enough by evicting one pod. It
// reports whether a pod has been evicted.
func (w *watch) free(ctx context.Context, t *policy.Threshold, levels map[string]policy.Level) bool {
	if w.softEnds() && t.Grace > 0 {
		return false // the pod may use its whole grace period, and then there may be enough
	}
	if policy.OnDisk(t.Signal) && w.limitsFree() {
		return false
	}
	if !w.cfg.Node.RuntimeAnswered(w.answersFrom) {
		w.cfg.Log.Warn("eviction threshold met and no pod can end: the container runtime does not answer", "signal", t.Signal)
		return false
	}
	l := levels[t.Signal]
	w.cfg.Log.Warn("eviction threshold met, reclaiming resources",
		"signal", t.Signal, "available", l.Available, "capacity", l.Capacity)
	w.cfg.Reporter.NodeEvent(corev1.EventTypeWarning, "EvictionThresholdMet", policy.Attempt(t))
	if policy.OnDisk(t.Signal) {
		w.reclaim(ctx, t.Signal)
		if levels, _ = w.levels(ctx); policy.Over(t, levels) {
			return false
		}
	}
	ranked := policy.Rank(t.Signal, w.cfg.Node.Use(ctx, t.Signal, w.candidates(ctx)))
	if len(ranked) == 0 || ctx.Err() != nil {
		w.cfg.Log.Warn("eviction threshold met and no pod can be evicted: free the resource by hand", "signal", t.Signal)
		return false
	}
	if levels, _ = w.levels(ctx); policy.Over(t, levels) {
		return false // pods have ended or removed files while the agent measured what they use
	}
	w.evictFor(ctx, t, levels, ranked[0])
	return true
}

// softEnds reports whether the pod that was evicted last at a soft threshold is still in its grace period. If it does
// not end within that, it is passed over.
func (w *watch) softEnds() bool {
	last := w.soft
	if last.pod == nil || latest.Closed(last.released) {
		return false
	}
	if time.Now().Before(last.overdue) {
		return true
	}
	w.passOver(last.pod)
	w.soft = softEviction{}
	return false
}

// passOver lets later evictions choose other pods than this one, which has not ended in time.
func (w *watch) passOver(pod *corev1.Pod) {
	w.cfg.Log.Warn("evicted pod has not released its resources, evicting other pods if the node is still short",
		"pod", podutil.Name(pod), "podUID", pod.UID)
	w.stuck[pod.UID] = true
	w.answersFrom = time.Now().Add(-silence)
}

// reclaim removes what ended pods have left, and then images that no container uses.
func (w *watch) reclaim(ctx context.Context, signal string) {
	bounded, cancel := context.WithTimeout(ctx, reclaimTimeout)
	defer cancel()
	w.cfg.Pods.RemoveEnded(bounded)
	if !w.cfg.Node.Frees(ctx, signal) {
		return
	}
	if err := w.cfg.Images.RemoveUnused(ctx); err != nil {
		w.cfg.Log.Warn("cannot remove some unused images", "err", err)
	}
}

// candidates are the pods whose end would give something back. A pod that is being deleted is one if it has time left:
// an eviction ends it earlier. One that has been evicted for another reason is one, so that its end is awaited.
func (w *watch) candidates(ctx context.Context) (all []*corev1.Pod) {
	staying, stuck := map[types.UID]bool{}, map[types.UID]bool{}
	for _, pod := range w.cfg.Pods.Staying(ctx, hardGrace) {
		staying[pod.UID] = true
	}
	for _, pod := range w.cfg.Pods.Active(ctx) {
		switch ends := pod.DeletionTimestamp != nil && !staying[pod.UID]; {
		case w.stuck[pod.UID]:
			stuck[pod.UID] = true
		case !ends && len(pod.Spec.Containers) > 0 && !podutil.IsTerminal(pod.Status.Phase):
			all = append(all, pod)
		}
	}
	w.stuck = stuck
	return all
}

// evictFor evicts a pod for a threshold. At a hard one it waits until the pod has released its resources.
func (w *watch) evictFor(ctx context.Context, t *policy.Threshold, levels map[string]policy.Level, pod policy.Pod) {
	grace := hardGrace
	if t.Grace > 0 {
		if grace = w.cfg.MaxGrace; grace < 0 {
			grace = math.MaxInt64
		}
	}
	var containers map[string]int64
	if policy.Reclaims(t.Signal) {
		containers = w.cfg.Node.Containers(ctx, t.Signal, pod.Pod)
	}
	message, annotations := policy.Explain(t, levels, pod, containers)
	released := w.evict(ctx, pod.Pod, t.Signal, agent.Eviction{
		Reason:  policy.Reason,
		Message: message,
		Grace:   grace,
	}, annotations)
	if t.Grace > 0 {
		own := min(grace, podutil.GracePeriod(pod.Pod))
		w.soft = softEviction{leaving{released, time.Now().Add(own).Add(releaseTimeout)}, pod.Pod}
		return // a hard threshold must not wait for it
	}
	select {
	case <-released:
	case <-time.After(releaseTimeout):
		w.passOver(pod.Pod)
	case <-ctx.Done():
	}
}
