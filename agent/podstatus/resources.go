package podstatus

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// resources fills in the resources of the whole pod. It computes them once for each generation of the spec.
func (b *builder) resources() {
	st := b.st
	if b.Allocation != nil {
		b.allocatedResources()
		return
	}
	own := b.Memory.Reported()
	if own != nil && own.ObservedGeneration == b.Pod.Generation && own.Resources != nil {
		st.AllocatedResources, st.Resources = own.AllocatedResources, own.Resources
		return
	}
	requests := resourcehelper.PodRequests(b.Pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(b.Pod, resourcehelper.PodResourcesOptions{})
	st.AllocatedResources = requests
	st.Resources = &corev1.ResourceRequirements{Requests: requests, Limits: limits}
}

// allocatedResources fills in the allocated resources. The limits of a running pod are those of its cgroup.
func (b *builder) allocatedResources() {
	st, allocated := b.st, b.Allocation
	st.AllocatedResources = allocated.Requests
	st.Resources = &corev1.ResourceRequirements{Requests: allocated.Requests, Limits: allocated.Limits}
	if b.Reported.Phase != corev1.PodRunning {
		return
	}
	if b.Resizing() && b.Reported.Resources != nil {
		st.Resources = b.Reported.Resources
		return
	}
	without := func(name corev1.ResourceName, bound int64) {
		if _, has := st.Resources.Limits[name]; has && bound <= 0 {
			st.Resources.Limits = maps.Clone(st.Resources.Limits)
			delete(st.Resources.Limits, name)
		}
	}
	without(corev1.ResourceCPU, allocated.Pod.Quota)
	without(corev1.ResourceMemory, allocated.Pod.Memory)
}

// resizeConditions adds the conditions for a pending resize and for a resize in progress.
func (b *builder) resizeConditions() {
	if b.Allocation == nil || podutil.IsTerminal(b.st.Phase) || b.Ending != nil {
		return
	}
	if w := b.Allocation.Pending; w != nil {
		b.resizeCondition(corev1.PodResizePending, w.Generation, w.Reason, w.Message)
	}
	if b.Resizing() {
		reason, message := "", b.resizeFailure()
		if message != "" {
			reason = corev1.PodReasonError
		}
		b.resizeCondition(corev1.PodResizeInProgress, b.Allocation.Generation, reason, message)
	}
}

// resizeCondition adds a condition about a resize. Its status is always True, so the time of the last transition is
// that of the last change of its reason.
func (b *builder) resizeCondition(t corev1.PodConditionType, generation int64, reason, message string) {
	c := corev1.PodCondition{
		Type:               t,
		Status:             corev1.ConditionTrue,
		ObservedGeneration: generation,
		Reason:             reason,
		Message:            message,
		LastTransitionTime: seconds(b.Now),
	}
	if old := podutil.Condition(b.Reported.Conditions, t); old != nil && old.Reason == reason {
		c.LastTransitionTime = old.LastTransitionTime
	}
	b.st.Conditions = append(b.st.Conditions, c)
}

// resizeFailure returns the message of a resize that has failed; empty if none has.
func (b *builder) resizeFailure() string {
	if f, failed := b.Memory.Failure(podstate.ResizePod{}.Key()); failed {
		return f.Message
	}
	for _, slot := range b.Slots {
		if slot.Last != nil {
			if f, failed := b.Memory.Failure(podstate.Resize{ID: slot.Last.ID}.Key()); failed {
				return f.Message
			}
		}
	}
	return ""
}
