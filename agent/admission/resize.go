package admission

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// AdmitResize decides whether a pod gets the resources in its spec; nil allows the resize. wanted is the pod as its
// source delivers it; allocated is the same pod with its allocated resources. others are the other admitted pods, as
// for Admit. swappable reports whether a container of the pod may swap. static are the resources that Guaranteed pods
// have for themselves, with the names of the managers and their policies.
func AdmitResize(wanted, allocated *corev1.Pod, allocatable corev1.ResourceList, others []*corev1.Pod,
	swappable func(*corev1.Pod, *corev1.Container) bool, static []Static) *podstate.PendingResize {
	pending := func(reason, message string) *podstate.PendingResize {
		return &podstate.PendingResize{Generation: wanted.Generation, Reason: reason, Message: message}
	}
	if swapChanges(wanted, allocated, swappable) {
		return pending(corev1.PodReasonInfeasible, "In-place resize of containers with swap is not supported.")
	}
	for _, s := range static {
		if podutil.QOS(wanted) == corev1.PodQOSGuaranteed && requestChanges(wanted, allocated, s.Resource, always) {
			return pending(corev1.PodReasonInfeasible, fmt.Sprintf(
				"Resize is infeasible for Guaranteed Pods alongside %s Manager policy %q", s.Manager, s.Policy))
		}
	}
	for _, s := range shortages(wanted, allocatable, others) {
		if slices.Contains(podutil.ComputeResources[:], s.name) { // the pod keeps what it has of the others
			return pending(corev1.PodReasonDeferred, s.rejection().Message)
		}
	}
	return nil
}

// Static is a resource that a manager with a static policy gives to Guaranteed pods for themselves.
type Static struct {
	Resource        corev1.ResourceName
	Manager, Policy string
}

// StaticCPU and StaticMemory are the resources with such a manager.
var (
	StaticCPU    = Static{corev1.ResourceCPU, "CPU", "static"}
	StaticMemory = Static{corev1.ResourceMemory, "Memory", "Static"}
)

// requestChanges reports whether a container, for which counts reports true, would request another amount of a
// resource. has is the container with its allocated resources.
func requestChanges(wanted, allocated *corev1.Pod, name corev1.ResourceName,
	counts func(has, wants *corev1.Container) bool) bool {
	for _, c := range podutil.ContainersWithResources(&wanted.Spec) {
		_, has := podutil.Container(&allocated.Spec, c.Name)
		if has == nil {
			continue
		}
		before, after := has.Resources.Requests[name], c.Resources.Requests[name]
		if before.Cmp(after) != 0 && counts(has, c) {
			return true
		}
	}
	return false
}

func always(_, _ *corev1.Container) bool { return true }

// swapChanges reports whether the memory request of a container that may swap would change. The container's swap limit
// depends on that request.
func swapChanges(wanted, allocated *corev1.Pod, swappable func(*corev1.Pod, *corev1.Container) bool) bool {
	return requestChanges(wanted, allocated, corev1.ResourceMemory, func(has, wants *corev1.Container) bool {
		return !restartsForMemory(has) && (swappable(wanted, wants) || swappable(allocated, has))
	})
}

// CompareResizes orders resizes by when they are decided: first the pods that request no more than they have, then by
// priority and QoS class, then those that have waited longest.
func CompareResizes(a, b, allocatedA, allocatedB *corev1.Pod) int {
	return cmp.Or(
		trueFirst(!wantsMore(a, allocatedA), !wantsMore(b, allocatedB)),
		cmp.Compare(podutil.Priority(b), podutil.Priority(a)),
		trueFirst(podutil.QOS(a) == corev1.PodQOSGuaranteed, podutil.QOS(b) == corev1.PodQOSGuaranteed),
		trueFirst(waitsLonger(a, b), waitsLonger(b, a)),
	)
}

// trueFirst orders a before b if only a has a property.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func wantsMore(wanted, allocated *corev1.Pod) bool {
	want := resource.PodRequests(wanted, resource.PodResourcesOptions{})
	has := resource.PodRequests(allocated, resource.PodResourcesOptions{})
	more := func(a, b *apiresource.Quantity) bool { return a.Cmp(*b) > 0 }
	return more(want.Cpu(), has.Cpu()) || more(want.Memory(), has.Memory())
}

// waitsLonger reports whether a resize of a has been pending for longer than one of b.
func waitsLonger(a, b *corev1.Pod) bool {
	pending := podutil.Condition(a.Status.Conditions, corev1.PodResizePending)
	other := podutil.Condition(b.Status.Conditions, corev1.PodResizePending)
	return pending != nil && (other == nil || pending.LastTransitionTime.Before(&other.LastTransitionTime))
}

// restartsForMemory reports whether a container must be restarted to get another amount of memory.
func restartsForMemory(c *corev1.Container) bool {
	for _, policy := range c.ResizePolicy {
		if policy.ResourceName == corev1.ResourceMemory {
			return policy.RestartPolicy == corev1.RestartContainer
		}
	}
	return false
}
