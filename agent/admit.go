package agent

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/admission"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/internal/latest"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods"
)

// minPreemption is the minimum of the time that a critical pod waits for the pods that end for it, as with the kubelet.
const minPreemption = 10 * time.Second

const notListed = "the container runtime has not listed its pods yet"

// admitPending starts workers for the pods that need not wait, and decides which of them are admitted.
func (d *dispatcher) admitPending(ctx context.Context) {
	for _, pod := range d.table.pending() {
		if d.waitsFor(pod) == nil {
			e := d.begin(ctx, pod)
			d.allocate(e, pod) // admission of the next pods counts what this one holds
			d.admit(ctx, e)
		}
	}
}

// waitsFor returns what a pod without a worker waits for; nil if the supervisor can decide about its admission.
func (d *dispatcher) waitsFor(pod *corev1.Pod) *Wait {
	switch static := podutil.IsStatic(pod); {
	case d.table.listed == nil && static:
		return &Wait{For: "its name", Why: "an earlier static pod of this name may still run; " + notListed}
	case d.table.listed == nil:
		return &Wait{For: "its admission", Why: notListed}
	case static && d.table.nameBusy(pod):
		return &Wait{For: "its name", Why: "an earlier static pod of this name has to end first"}
	case static || d.table.admittedBefore(pod):
		return nil
	}
	if latest.Closed(d.cfg.NodeSeen) {
		return nil
	}
	return &Wait{For: "its admission", Why: "the Node object has not been read from the API server yet"}
}

// admit decides about a pod that is new to this run of the agent.
func (d *dispatcher) admit(ctx context.Context, e *entry) {
	pod := e.source
	if shownEnded(pod) {
		return
	}
	d.resumeStop(e)
	if pod.DeletionTimestamp != nil {
		return
	}
	if d.table.admittedBefore(pod) {
		d.resume(ctx, e)
		return
	}
	decision, wait := d.evaluate(pod)
	if decision.Rejection == nil || decision.Rejection.Reason != admission.ReasonNodeAffinity {
		d.decide(ctx, e, decision, wait)
		return
	}
	// The scheduler may know labels of the node that the watch has not brought yet.
	d.await(ctx, e, Wait{For: "its admission", Why: "the Node object does not match it, and is read again"},
		func(ctx context.Context) error {
			d.cfg.RefreshNode(ctx)
			return nil
		}, func(error) {
			decision, wait := d.evaluate(pod)
			d.decide(ctx, e, decision, wait)
		})
	e.admitting.undecided = true
}

// decide carries out a decision about a pod.
func (d *dispatcher) decide(ctx context.Context, e *entry, decision admission.Decision, wait bool) {
	if decision.Rejection != nil {
		d.reject(e, cmp.Or(d.misplaced(e.source, decision), decision.Rejection))
		return
	}
	rest, reserved := d.reserve(e) // no pod ends for one that is refused here
	switch {
	case !reserved:
	case wait:
		d.preempt(ctx, e, decision, rest)
	default:
		d.prepare(ctx, e, rest)
	}
}

// misplaced returns why a pod that requests too much cannot get CPUs and memory of its own; nil if it could. The
// kubelet asks its resource managers before it adds up requests, so their reasons and metrics come first.
func (d *dispatcher) misplaced(pod *corev1.Pod, decision admission.Decision) *podstate.Rejection {
	if decision.Short == "" {
		return nil
	}
	return d.cfg.Placement.Rejection(pod)
}

// reject refuses a pod, with an event. A static pod is tried again, because no controller replaces it.
func (d *dispatcher) reject(e *entry, r *podstate.Rejection) {
	e.rejected = r
	e.resources.GiveUp()
	if podutil.IsStatic(e.source) {
		e.retryAt = time.Now()
	}
	d.cfg.refused(e.pod(), r.Reason, r.Message)
}

// refused counts and logs that a pod was refused, and records an event about it.
func (c *Config) refused(pod *corev1.Pod, reason, message string) {
	c.Metrics.Rejected(reason)
	c.Log.Info("pod refused", "pod", podutil.Name(pod), "podUID", pod.UID, "reason", reason, "message", message)
	c.Events.PodEvent(pod, "", corev1.EventTypeWarning, reason, message)
}

// evaluate decides about the admission of a pod, after it has taken back what ended pods have for themselves. Pods that
// end for a critical pod hold their resources until the end. Another critical pod may have what is left of these, but
// has to wait: wait reports that. Other pods may not.
func (d *dispatcher) evaluate(pod *corev1.Pod) (decision admission.Decision, wait bool) {
	if r := d.cfg.Rejection(pod); r != nil {
		return admission.Decision{Rejection: r}, false
	}
	d.cfg.Devices.ReleaseEnded(d.table.ended)
	d.cfg.Placement.ReleaseEnded(d.table.ended)
	others, ending := d.table.others(pod.UID)
	decision = d.cfg.Admit(pod, others)
	if decision.Rejection != nil || len(ending) == 0 {
		return decision, len(decision.Preempt) > 0
	}
	now := d.cfg.Admit(pod, slices.Concat(others, ending))
	if podutil.IsCritical(pod) {
		return decision, now.Rejection != nil || len(now.Preempt) > 0
	}
	return now, false
}

// preempt ends pods so that a critical one can run. From now on the critical pod counts as admitted, and the others
// do not. It gets its first order when all pods that end for critical ones have released all their resources, or at
// the latest after 1.5 times their grace period: a pod that does not end must not prevent a critical one from running.
// rest is what is left to do for the critical pod then.
func (d *dispatcher) preempt(ctx context.Context, e *entry, decision admission.Decision, rest *preparation) {
	for _, pod := range decision.Preempt {
		victim := d.table.workers[pod.UID]
		d.cfg.Log.Info("preempting pod to admit a critical pod", "pod", podutil.Name(pod), "podUID", pod.UID,
			"resource", decision.Short, "for", podutil.Name(e.source))
		d.cfg.Events.PodEvent(pod, "", corev1.EventTypeWarning,
			podutil.ReasonPreempting, podutil.MessagePreempted)
		d.cfg.Metrics.Preempted(string(decision.Short))
		victim.preemptor = e
		d.evict(victim, Eviction{
			Reason:  podutil.ReasonPreempting,
			Message: podutil.MessagePreempted,
			Grace:   podutil.GracePeriod(pod),
		})
	}
	limit := minPreemption
	var ending []<-chan struct{}
	for _, victim := range d.table.workers {
		if victim.preemptor != nil && !victim.worker.isReleased() {
			ending = append(ending, d.whenReleased(victim))
			limit = max(limit, podutil.GracePeriod(victim.source)*3/2)
		}
	}
	why := "pods of lower priority are ending to free " + cmp.Or(string(decision.Short), "resources")
	d.prepare(ctx, e, &preparation{Wait{For: "pods that end for it", Why: why}, func(ctx context.Context) error {
		awaitAll(ctx, ending, limit)
		if rest == nil {
			return nil
		}
		d.loop.post(func() {
			if ctx.Err() == nil {
				e.admitting.wait = rest.awaited
			}
		})
		return rest.run(ctx) // also if ctx has ended: it takes back what was reserved
	}})
}

// awaitAll waits until all channels are closed, until ctx ends, or for limit.
func awaitAll(ctx context.Context, all []<-chan struct{}, limit time.Duration) {
	timeout := time.After(limit)
	for _, done := range all {
		select {
		case <-done:
		case <-timeout:
			return
		case <-ctx.Done():
			return
		}
	}
}

// await runs f in a new goroutine, and then calls then in the supervisor's loop, unless the pod has to end
// before that. Only this pod waits for it.
func (d *dispatcher) await(ctx context.Context, e *entry, awaited Wait,
	f func(context.Context) error, then func(error)) {
	calling, cancel := context.WithCancel(ctx)
	e.admitting = &admitting{cancel: cancel, wait: awaited}
	d.running.Go(func() {
		err := f(calling)
		d.loop.post(func() {
			if calling.Err() != nil {
				return // the pod or the agent has to end; err may only be a result of that
			}
			e.stopAdmitting()
			then(err)
			d.reconcile(ctx)
		})
	})
}

// discardFitting ends the workers of static pods that are tried again: those that were refused and can be admitted now,
// and those whose eviction was called off and that have ended. Both then go through admission again.
func (d *dispatcher) discardFitting() {
	for uid, e := range d.table.workers {
		due := !e.retryAt.IsZero() && !time.Now().Before(e.retryAt)
		if !due || d.table.set.Pods[uid] == nil || d.cfg.BegunEviction(e.source) != nil { // another would end as this one
			continue
		}
		if e.stop == nil && d.fits(e.pod()) || e.stop.Is(podstate.StopEvicted) && e.worker.isReleased() {
			d.cfg.Log.Info("static pod that was refused or ended can run again, admitting it",
				"pod", podutil.Name(e.source), "podUID", uid)
			e.retryAt = time.Time{}
			e.discard()
		}
	}
}

// fits reports whether a refused pod would be admitted now, with everything that it requests for itself.
func (d *dispatcher) fits(pod *corev1.Pod) bool {
	decision, _ := d.evaluate(pod)
	return decision.Rejection == nil && d.cfg.Placement.Fits(pod) && d.cfg.Devices.Rejection(pod) == nil
}

// freed goes on with what may have waited for a pod that has released its resources, or holds less than before. Other
// pods may need these resources. Another static pod, or the mirror pod, may need its name if it does not come from the
// API server.
func (d *dispatcher) freed(ctx context.Context, pod *corev1.Pod) {
	if pods.SourceOf(pod) != pods.SourceAPI {
		d.reconcile(ctx)
		return
	}
	d.retry()
}

// retry decides again about what did not fit the node: refused static pods and deferred resizes.
func (d *dispatcher) retry() {
	d.discardFitting()
	d.evaluateResizes()
}
