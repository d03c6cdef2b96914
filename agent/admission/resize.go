package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/resource"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// AdmitResize decides whether a pod gets the resources in its spec; nil allows the resize. wanted is the pod as its
// source delivers it; allocated is the same pod with its allocated resources. others are the other admitted pods,
// with their allocated resources. swappable reports whether a container of the pod may swap. static are the resources
// that Guaranteed pods have for themselves, with the names of the managers and their policies.
func AdmitResize(wanted, allocated *corev1.Pod, allocatable corev1.ResourceList, others []*corev1.Pod,
	swappable func(*corev1.Pod, *corev1.Container) bool, static []Static) *podstate.PendingResize {
	if swapChanges(wanted, allocated, swappable) {
		return &podstate.PendingResize{
			Generation: wanted.Generation,
			Reason:     corev1.PodReasonInfeasible,
			Message:    "In-place resize of containers with swap is not supported.",
		}
	}
	for _, s := range static {
		if podutil.QOS(wanted) == corev1.PodQOSGuaranteed && requestChanges(wanted, allocated, s.Resource) {
			return &podstate.PendingResize{
				Generation: wanted.Generation,
				Reason:     corev1.PodReasonInfeasible,
				Message: fmt.Sprintf("Resize is infeasible for Guaranteed Pods alongside %s Manager policy %q", s.Manager,
					s.Policy),
			}
		}
	}
	if short := shortages(wanted, allocatable, others); len(short) > 0 {
		return &podstate.PendingResize{
			Generation: wanted.Generation,
			Reason:     corev1.PodReasonDeferred,
			Message:    short[0].rejection().Message,
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

// requestChanges reports whether a container would request another amount of a resource.
func requestChanges(wanted, allocated *corev1.Pod, name corev1.ResourceName) bool {
	for role, c := range podutil.Containers(&wanted.Spec) {
		_, has := podutil.Container(&allocated.Spec, c.Name)
		if role == podutil.RoleEphemeral || has == nil {
			continue
		}
		before, after := has.Resources.Requests[name], c.Resources.Requests[name]
		if before.Cmp(after) != 0 {
			return true
		}
	}
	return false
}

// swapChanges reports whether the memory request of a container that may swap would change. The container's swap limit
// depends on that request.
func swapChanges(wanted, allocated *corev1.Pod, swappable func(*corev1.Pod, *corev1.Container) bool) bool {
	for role, c := range podutil.Containers(&wanted.Spec) {
		_, has := podutil.Container(&allocated.Spec, c.Name)
		if role == podutil.RoleEphemeral || has == nil {
			continue
		}
		before, after := has.Resources.Requests[corev1.ResourceMemory], c.Resources.Requests[corev1.ResourceMemory]
		if before.Cmp(after) != 0 && !restartsFor(has, corev1.ResourceMemory) &&
			(swappable(wanted, c) || swappable(allocated, has)) {
			return true
		}
	}
	return false
}

// ResizeBefore reports whether the resize of a is decided before that of b: first the pods that request no more than
// they have, then by priority and QoS class, then those that have waited longest.
func ResizeBefore(a, b, allocatedA, allocatedB *corev1.Pod) bool {
	if upA, upB := wantsMore(a, allocatedA), wantsMore(b, allocatedB); upA != upB {
		return upB
	}
	if priorityA, priorityB := podutil.Priority(a), podutil.Priority(b); priorityA != priorityB {
		return priorityA > priorityB
	}
	sureA, sureB := podutil.QOS(a) == corev1.PodQOSGuaranteed, podutil.QOS(b) == corev1.PodQOSGuaranteed
	if sureA != sureB {
		return sureA
	}
	sinceA, sinceB := pendingSince(a), pendingSince(b)
	return sinceA != nil && (sinceB == nil || sinceA.Before(sinceB))
}

func wantsMore(wanted, allocated *corev1.Pod) bool {
	want := resource.PodRequests(wanted, resource.PodResourcesOptions{})
	has := resource.PodRequests(allocated, resource.PodResourcesOptions{})
	more := func(a, b *apiresource.Quantity) bool { return a.Cmp(*b) > 0 }
	return more(want.Cpu(), has.Cpu()) || more(want.Memory(), has.Memory())
}

func pendingSince(pod *corev1.Pod) *metav1.Time {
	if c := podutil.Condition(pod.Status.Conditions, corev1.PodResizePending); c != nil {
		return &c.LastTransitionTime
	}
	return nil
}

// restartsFor reports whether a container must be restarted to get another amount of the resource.
func restartsFor(c *corev1.Container, name corev1.ResourceName) bool {
	for _, policy := range c.ResizePolicy {
		if policy.ResourceName == name {
			return policy.RestartPolicy == corev1.RestartContainer
		}
	}
	return false
}
