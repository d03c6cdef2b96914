package agent

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/internal/latest"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// published is what was published last about a pod, so that only changes are published.
type published struct {
	// uses is the object that the references were taken from.
	uses *corev1.Pod
	// lacking: the references were those of a pod for which something may be missing in its objects.
	lacking bool
	// statusOf is the object whose status was set last: the pod or its mirror.
	statusOf types.UID
	// probed are the instances being probed.
	probed []probed
	// stop has been recorded in stopFile, or could not or need not be.
	stop stopRecord
	// pullFailed is when the image failed, by container, whose back-off had an event last.
	pullFailed map[string]time.Time
	// deadline: there was an event about the pod's active deadline.
	deadline bool
}

// probed is an instance being probed, at the pod's address; see plan.ProbeTarget.
type probed struct {
	id, address            string
	started, readinessOnly bool
}

// publish passes on the result of a plan: the status, the containers to probe, and what explain shows. Others read the
// result when Watchers or onFreed is called, and isReleased in the latter: these are set first.
func (w *worker) publish(p plan.Plan) {
	before := w.lastStatus()
	w.probe(p.Probes, p.Status.PodIP)
	w.backoffEvents(before, p.Status)
	w.resizeEvents(p.Status, p.Ending)
	w.deadlineEvent(p.Ending)
	w.publishStatus(p)
	w.explained.Store(w.explain(p))
	w.setResult(p.Status)
	w.cfg.Watchers.Changed(w.order.Pod.UID)
	if shrunk(before, p.Status) {
		w.onFreed()
	}
	if p.Released && !w.isReleased() {
		w.setReleased(p.Status.Phase)
	}
	if p.Reclaimed && !latest.Closed(w.reclaimed) {
		close(w.reclaimed)
	}
	w.countEnds(before, p.Status)
	w.countStart(p.Status)
	w.memory.Report(p.Status)
	if p.Done {
		w.leave()
	}
}

// publishStatus sets the status of the pod, or of its mirror.
func (w *worker) publishStatus(p plan.Plan) {
	publish := w.order.Publish
	if publish == nil || w.order.Stop.Is(podstate.StopOrphaned) {
		return
	}
	w.forget(publish.UID)
	if w.order.awaitsRemoval(&p) {
		w.cfg.Status.SetGone(publish, *p.Status)
	} else {
		w.cfg.Status.Set(publish, *p.Status)
	}
}

// setReleased makes known that the pod has released all its resources.
func (w *worker) setReleased(phase corev1.PodPhase) {
	if err := w.cfg.Steps.FreeIDs(w.order.Pod.UID); err != nil {
		w.log.Warn("cannot free the IDs of the pod's user namespace before the pod is removed", "err", err)
	}
	w.cfg.Metrics.Released(w.order.Pod)
	close(w.released)
	w.logEnd(phase)
	w.onFreed()
}

// shrunk reports whether a pod has less CPU or memory than before.
func shrunk(before, now *corev1.PodStatus) bool {
	if before.Resources == nil || now.Resources == nil {
		return false
	}
	had, has := before.Resources.Requests, now.Resources.Requests
	return slices.ContainsFunc(podutil.ComputeResources[:], func(name corev1.ResourceName) bool {
		return podutil.Amount(has, name) < podutil.Amount(had, name)
	})
}

// leave removes the pod from probes, objects and statuses.
func (w *worker) leave() {
	w.cfg.Probes.Set(w.order.Pod, "", nil)
	w.cfg.Objects(w.order.Pod).Drop(w.order.Pod.UID)
	w.forget("")
}

// forget drops the status of the object that was published before, if next is another one: a mirror pod may be
// created again.
func (w *worker) forget(next types.UID) {
	if last := w.published.statusOf; last != "" && last != next {
		w.cfg.Status.Forget(last)
	}
	w.published.statusOf = next
}

// use sets the objects that the pod refers to, if its spec may have changed, or if something that a container needs
// from them is now missing or no longer missing.
func (w *worker) use() {
	pod, lacking := w.order.Pod, w.memory.MayLackObjects()
	old := w.published.uses
	same := old != nil && old.Generation == pod.Generation && old.UID == pod.UID && !pod.CreationTimestamp.IsZero()
	if same && w.published.lacking == lacking {
		return
	}
	w.published.uses, w.published.lacking = pod, lacking
	w.cfg.Objects(pod).UsePod(pod, lacking)
}

// probe sets the probe targets and their address, which is that in the status, if they have changed.
func (w *worker) probe(targets []plan.ProbeTarget, address string) {
	now := make([]probed, len(targets))
	for i, t := range targets {
		now[i] = probed{t.ContainerID, address, t.Started, t.ReadinessOnly}
	}
	if slices.Equal(now, w.published.probed) {
		return
	}
	w.published.probed = now
	w.cfg.Probes.Set(w.order.Pod, address, targets)
}
