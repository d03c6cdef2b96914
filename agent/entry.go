package agent

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/allocation"
	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods"
)

// entry is the supervisor's state of one pod. The loop owns it. The pod is in one of these states:
//
//	undecided  admitting.undecided: the node may not match it. It gets no order, and holds nothing.
//	preparing  admitting otherwise: it gets no order either, but counts as admitted.
//	resumed    admitting.resumed: an earlier run of the agent has admitted it. It gets orders.
//	admitted   admitting, rejected and stop are nil.
//	refused    rejected is set, and stop is nil.
//	ending     stop is set, which only becomes stricter; whether the pod was refused stays. Admission has ended.
type entry struct {
	worker *worker
	// fingerprint is that of what the runtime had listed of the pod when its worker began.
	fingerprint uint64
	// source is the pod as its source has it, or, for an orphan, what its traces have recorded; mirror is the mirror
	// pod of a static pod.
	source, mirror *corev1.Pod
	resources      allocation.Resources
	// rejected is why the pod was refused, and stop how it has to end; both may be nil.
	rejected *podstate.Rejection
	stop     *podstate.Stop
	// reclaim: the worker has to remove what is left of the ended pod in the runtime. returns: see podstate.Desired.
	reclaim, returns bool
	// ordered: the worker has received an order, and admission has not gone on since.
	ordered   bool
	admitting *admitting // nil: admission is complete
	// logsOnly: the pod had left nothing but logs when its worker began.
	logsOnly bool
	// preemptor is the critical pod for which this one ends, which already counts instead of it; may be nil.
	preemptor *entry
	// retryAt is when a static pod that was refused or ended may get another worker, if it can run; zero for never.
	// discard ends its worker for that; nothing of the pod runs.
	retryAt time.Time
	discard context.CancelFunc
}

// admitting is the rest of a pod's admission: a Node object that is read again, pods that end for it, or device plugins
// that have not answered.
type admitting struct {
	cancel context.CancelFunc
	wait   Wait // for explain
	// resumed: an earlier run of the agent has admitted the pod, and only its devices are awaited. undecided: whether the
	// pod is admitted follows.
	resumed, undecided bool
}

// order is the desired state of a pod for its worker, and the API object that gets the pod's status. It is never
// changed.
type order struct {
	podstate.Desired
	// Publish is the API object that gets the status: the pod itself, or a static pod's mirror. Nil if there is none.
	Publish *corev1.Pod
}

// awaitsRemoval reports whether nothing is left of a deleted pod but its API object. Without a deletionTimestamp, as
// after a restore of etcd from a backup, the object stays.
func (o *order) awaitsRemoval(p *plan.Plan) bool {
	return p.Released && o.Stop.Is(podstate.StopDeleted) && o.Publish != nil && o.Publish.DeletionTimestamp != nil
}

// knows reports whether the worker knows what the runtime lists of the pod, or is about to read just that.
func (e *entry) knows(fingerprint uint64) bool {
	if observed := e.worker.result.Load().snapshot; observed != nil {
		return observed.Matches(fingerprint)
	}
	return e.fingerprint == fingerprint
}

// order computes the worker's order from the entry and the node's facts.
func (e *entry) order(node *spec.Node) order {
	o := order{Desired: podstate.Desired{
		Pod:      e.pod(),
		Rejected: e.rejected,
		Stop:     e.stop,
		Reclaim:  e.reclaim,
		Returns:  e.returns,
	}}
	if e.admitting != nil && e.admitting.resumed {
		o.DevicesMissing = e.admitting.wait.Why
	}
	if o.Allocation = e.resources.ForPlan(node); o.Allocation != nil {
		o.Hashes = hashes(e.source)
	}
	switch {
	case e.orphaned():
	case podutil.IsStatic(e.source):
		o.Publish = e.mirror
	default:
		o.Publish = e.source
	}
	return o
}

// pod returns the pod with the resources that are allocated to it, a static pod also with the status of its mirror.
func (e *entry) pod() *corev1.Pod {
	pod := cmp.Or(e.resources.Pod(), e.source)
	if e.mirror == nil || !podutil.IsStatic(pod) {
		return pod
	}
	shown := *pod
	shown.Status = e.mirror.Status
	shown.Status.QOSClass = pod.Status.QOSClass // the manifest decides, with or without an API server
	if shownEnded(e.mirror) {
		// The node refused or ended it. A static pod starts again; the ends of its containers stay in the status.
		shown.Status.Phase = ""
		shown.Status.Reason, shown.Status.Message = "", ""
	}
	return &shown
}

// holding returns the pod with the resources that its worker has found last. Until a resize to less is done, these are
// more than the allocated ones. Before the first sync the API shows them.
func (e *entry) holding() *corev1.Pod {
	found := e.worker.result.Load().status
	if found == nil {
		return e.pod()
	}
	pod := *e.pod()
	pod.Status.Resources = found.Resources
	return &pod
}

// withheld reports whether the worker gets no order, because the admission of the pod is not complete. One that an
// earlier run of the agent has admitted is observed meanwhile: its status must not stay as it was before a reboot.
func (e *entry) withheld() bool { return e.admitting != nil && !e.admitting.resumed }

// stopAdmitting cancels the rest of the pod's admission.
func (e *entry) stopAdmitting() {
	if e.admitting != nil {
		e.admitting.cancel()
		e.admitting, e.ordered = nil, false
	}
}

// keepsName reports whether no other static pod, and no mirror pod, may have the name of this one: it is not known to
// come from the API server, and has not released its resources. What the runtime has yet to remove does not count.
func (e *entry) keepsName() bool {
	return pods.SourceOf(e.source) != pods.SourceAPI && !e.worker.isReleased()
}

// orphaned reports whether no source knows the pod any more.
func (e *entry) orphaned() bool { return e.stop.Is(podstate.StopOrphaned) }

// admitted reports whether the pod counts as admitted, also if it has to end or has ended.
func (e *entry) admitted() bool {
	return e.rejected == nil && (e.admitting == nil || !e.admitting.undecided)
}

// active reports whether the pod was admitted and has not ended.
func (e *entry) active() bool { return e.admitted() && !shownEnded(e.pod()) }

// shownEnded reports whether the API shows the pod as ended.
func shownEnded(pod *corev1.Pod) bool { return podutil.IsTerminal(pod.Status.Phase) }

// stopOf returns the stop that the object requests. The deadline counts from when an agent first sees the deletion, see
// stopFile; a later, shorter grace period moves it to an earlier time.
func stopOf(pod *corev1.Pod) *podstate.Stop {
	if pod.DeletionTimestamp == nil {
		return nil
	}
	deadline := time.Now().Add(podstate.EndGrace(podutil.GracePeriod(pod)))
	return &podstate.Stop{Cause: podstate.StopDeleted, Deadline: deadline}
}

// hashes are the hashes of the pod's container specs, by name.
func hashes(pod *corev1.Pod) map[string]string {
	all := make(map[string]string, len(pod.Spec.Containers))
	for _, c := range podutil.Containers(&pod.Spec) {
		all[c.Name] = podutil.ContainerHash(c)
	}
	return all
}
