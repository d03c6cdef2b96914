package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// entry is what the supervisor knows of one pod. Its loop owns it.
type entry struct {
	worker *worker
	// source is the pod as its source has it, or what is known of it from its traces; mirror the mirror pod of a static
	// one.
	source, mirror *corev1.Pod
	resources      podResources
	// rejected says why the pod was refused, stop how it is to end; nil: not so.
	rejected *podstate.Rejection
	stop     *podstate.Stop
	// reclaim: what is left of the ended pod is to be removed.
	reclaim bool
	// ordered: the worker has got an order.
	ordered bool
	// asking cancels the rest of the pod's admission: pods that end for it, or device plugins that have not answered.
	// Until that is over its worker has no order. Nil: it is over. awaited is what explain says of it.
	asking  context.CancelFunc
	awaited Wait
	// preempted: the pod ends for a critical one, which already counts in its place.
	preempted bool
	// retry: the pod was refused, and is judged again when something has changed. discard ends its worker for that;
	// nothing of the pod is on the node.
	retry   bool
	discard context.CancelFunc
}

// Order tells a worker what is desired, and which API object shows the pod's status. It is never changed.
type Order struct {
	podstate.Desired
	// Publish is the API object whose status this pod's is: the pod itself, or a static pod's mirror. Nil if there is
	// none.
	Publish *corev1.Pod
}

// order computes the worker's order. It follows from the entry and the node's facts alone.
func (e *entry) order(node *spec.Node) Order {
	o := Order{Desired: podstate.Desired{Pod: e.pod(), Rejected: e.rejected, Stop: e.stop, Reclaim: e.reclaim}}
	if e.resources.allocated != nil {
		o.Grant, o.Hashes = e.resources.grant(node), hashes(e.source)
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

// pod is the pod with the resources that are allocated to it, and a static pod with the status of its mirror.
func (e *entry) pod() *corev1.Pod {
	pod := e.source
	if e.resources.pod != nil {
		pod = e.resources.pod
	}
	if e.mirror == nil || !podutil.IsStatic(pod) {
		return pod
	}
	shown := *pod
	shown.Status = e.mirror.Status
	if finished(e.mirror) {
		// The node refused or ended it. A static pod starts again; the ends of its containers stay in the status.
		shown.Status.Phase, shown.Status.Reason, shown.Status.Message = "", "", ""
	}
	return &shown
}

// orphaned reports whether no source knows the pod any more.
func (e *entry) orphaned() bool { return e.stop != nil && e.stop.Cause == podstate.StopOrphaned }

// active reports whether the pod was admitted and has not ended.
func (e *entry) active() bool { return e.rejected == nil && !finished(e.pod()) }

// finished reports whether the API shows the pod as ended.
func finished(pod *corev1.Pod) bool { return podutil.IsTerminal(pod.Status.Phase) }

// stopOf is the stop that the object itself asks for. The deadline counts from when the agent first sees the
// deletion; a later, shorter grace brings it nearer.
func stopOf(pod *corev1.Pod) *podstate.Stop {
	if pod.DeletionTimestamp == nil {
		return nil
	}
	return &podstate.Stop{Cause: podstate.StopDeleted, Deadline: time.Now().Add(podutil.GracePeriod(pod))}
}

// hashes are the hashes of the pod's container specs, by name.
func hashes(pod *corev1.Pod) map[string]string {
	all := make(map[string]string, len(pod.Spec.Containers))
	for _, c := range podutil.Containers(&pod.Spec) {
		all[c.Name] = spec.ContainerHash(c)
	}
	return all
}
