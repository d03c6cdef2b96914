package agent

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/allocation"
	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// dispatcher begins the workers of pods, decides which pods are admitted and what is allocated to them, and sends the
// workers their orders. Only the loop uses it.
type dispatcher struct {
	cfg         *Config
	loop        *loop
	table       *table
	allocations *allocation.Store
	// running counts the goroutines that Run of the supervisor waits for.
	running *sync.WaitGroup
	// reconcile brings the workers in line with the sources; it is called in the loop when an admission is complete, and
	// when a worker has ended.
	reconcile func(context.Context)
}

// begin starts a worker for a pod. It does nothing before it gets its first order.
func (d *dispatcher) begin(ctx context.Context, pod *corev1.Pod) *entry {
	listed, inRuntime := d.table.listed[pod.UID]
	facts := listedFacts(pod.UID, listed)
	facts.stale = !inRuntime && d.table.hasTraces(pod.UID) // an earlier worker may have left instances
	worker := newWorker(d.cfg, facts, func() { d.loop.post(func() { d.freed(ctx, pod) }) })
	e := &entry{source: pod, worker: worker, fingerprint: listed.Fingerprint}
	d.table.workers[pod.UID] = e
	if eviction := d.cfg.BegunEviction(pod); eviction != nil {
		e.stop = eviction.stop(pod)
	}
	running, discard := context.WithCancel(ctx)
	e.discard = discard
	d.running.Go(func() {
		e.worker.run(running)
		discard()
		d.loop.post(func() {
			d.table.workerEnded(pod.UID)
			d.reconcile(ctx)
		})
	})
	return e
}

// update records the newest objects of a pod, and sends its worker an order if something is new. As long as a resize
// is not decided, evaluateResizes sends the order: the status must not show its generation without its condition.
func (d *dispatcher) update(e *entry, pod *corev1.Pod) {
	mirror, _ := d.table.set.Mirror(pod.UID)
	stop := e.stop.Stricter(stopOf(pod))
	returns := stop.Is(podstate.StopOrphaned)
	if e.ordered && e.source == pod && e.mirror == mirror && e.stop == stop && e.returns == returns {
		return
	}
	switch {
	case stop != nil:
		e.stopAdmitting()
	case e.withheld():
		return
	}
	if e.source != pod {
		d.allocate(e, pod)
	}
	e.source, e.returns = pod, returns
	e.mirror, e.stop = mirror, stop
	if !e.resources.Undecided() {
		d.send(e)
	}
}

// allocate brings the resources of an entry in line with a new version of its pod.
func (d *dispatcher) allocate(e *entry, pod *corev1.Pod) {
	mayResize := pod.DeletionTimestamp == nil && !shownEnded(pod) && e.rejected == nil
	d.allocations.Update(&e.resources, pod, mayResize)
}

// send sends the worker its newest order.
func (d *dispatcher) send(e *entry) {
	e.ordered = true
	e.worker.inbox.Put(e.order(d.cfg.Node()))
}

// orphan ends a pod that no source knows any more.
func (d *dispatcher) orphan(e *entry) {
	deadline := time.Now().Add(podstate.EndGrace(podutil.GracePeriod(e.source)))
	stop := e.stop.Stricter(&podstate.Stop{Cause: podstate.StopOrphaned, Deadline: deadline})
	if e.ordered && e.stop == stop && !e.returns {
		return
	}
	e.stopAdmitting()
	e.stop, e.returns = stop, false
	e.resources.GiveUp()
	d.send(e)
}

// evict ends a pod that its source still has. released is closed when the pod has released all its resources.
func (d *dispatcher) evict(e *entry, eviction Eviction) (released <-chan struct{}) {
	if stop := e.stop.Stricter(eviction.stop(e.source)); stop != e.stop {
		e.stop = stop
		e.stopAdmitting()
		d.send(e)
	}
	return d.whenReleased(e)
}

// whenReleased returns a channel that is closed when a pod has released all its resources, or when its worker or the
// supervisor ends.
func (d *dispatcher) whenReleased(e *entry) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-e.worker.released:
		case <-e.worker.gone:
		case <-d.loop.gone:
		}
	}()
	return done
}

// adopt starts a worker that ends a pod that no source knows, or goes on with what an earlier run of the agent has
// begun.
func (d *dispatcher) adopt(ctx context.Context, pod *corev1.Pod) *entry {
	d.cfg.Log.Info("orphaned pod found, removing it", "pod", podutil.Name(pod), "podUID", pod.UID)
	e := d.begin(ctx, pod)
	if record := d.cfg.recordedStop(pod); record != nil {
		e.stop = record.stop(pod, podstate.StopOrphaned).Stricter(e.stop)
	}
	d.orphan(e)
	return e
}
