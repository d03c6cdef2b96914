// Package allocation keeps how much CPU and memory of the node each pod holds: with in-place resize, the spec of a pod
// may ask for more or less.
//
// It owns the record in the directory of a pod, and the entries of pods in the file for a kubelet that follows. It does
// not decide whether a resize fits. Only the loop of package agent calls it, so it needs no lock. A decision is
// recorded before the worker of the pod learns of it, so after a crash the next run of the agent finds it. Without a
// record the status of the pod counts.
package allocation

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// allocation is how much of the node's CPU and memory a pod holds: what its spec asked for at some generation.
type allocation struct {
	Generation int64                                  `json:"generation"`
	Containers map[string]corev1.ResourceRequirements `json:"containers"`
	// Pod are the resources of the pod as a whole (KEP-2837); empty if it has none.
	Pod corev1.ResourceRequirements `json:"pod,omitzero"`
	// Before is what each instance of a container might use before its first resize, with the pod's limits, by ID. An
	// instance that a kubelet has created was created with it.
	Before map[string]corev1.ResourceRequirements `json:"before,omitempty"`
}

// desiredResources returns what the spec of a pod asks for.
func desiredResources(pod *corev1.Pod) *allocation {
	a := &allocation{Generation: pod.Generation, Containers: map[string]corev1.ResourceRequirements{}}
	for _, c := range podutil.ContainersWithResources(&pod.Spec) {
		a.Containers[c.Name] = only(c.Resources)
	}
	if r := pod.Spec.Resources; r != nil {
		a.Pod = only(*r)
	}
	return a
}

// allocationOf returns what the status of a pod shows of its allocation. That is what the spec requests if an agent has
// seen this very spec and resized the pod.
func allocationOf(pod *corev1.Pod) *allocation {
	a := desiredResources(pod)
	if showsDesired(pod) {
		return a
	}
	a.Generation = pod.Status.ObservedGeneration
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if c := &list[i]; c.Resources != nil {
				a.Containers[c.Name] = only(*c.Resources)
			}
		}
	}
	if shown := pod.Status.Resources; shown != nil {
		for name := range a.Pod.Requests {
			a.Pod.Requests[name] = withoutOverhead(pod, pod.Status.AllocatedResources, name)
		}
		for name := range a.Pod.Limits {
			a.Pod.Limits[name] = withoutOverhead(pod, shown.Limits, name)
		}
	}
	return a
}

// withoutOverhead returns an amount of a list in the status of a pod, which includes the overhead of the pod unless it
// is zero. The requests that a kubelet shows as actual resources are not such a list: they have that of CPU alone.
func withoutOverhead(pod *corev1.Pod, list corev1.ResourceList, name corev1.ResourceName) resource.Quantity {
	amount, overhead := list[name].DeepCopy(), pod.Spec.Overhead[name]
	if amount.Cmp(overhead) <= 0 {
		return resource.Quantity{}
	}
	amount.Sub(overhead)
	return amount
}

// showsDesired reports whether the status shows that an agent has allocated what this very spec requests.
func showsDesired(pod *corev1.Pod) bool {
	return pod.Status.ObservedGeneration >= pod.Generation &&
		podutil.Condition(pod.Status.Conditions, corev1.PodResizePending) == nil
}

// outdated reports whether the status shows that a kubelet, which does not know the record, has resized the pod since
// the allocation was recorded. While a resize is pending, the status still shows the allocated requests.
func (a *allocation) outdated(pod *corev1.Pod) bool {
	if pod.Status.ObservedGeneration <= a.Generation || pod.DeletionTimestamp != nil {
		return false
	}
	if showsDesired(pod) {
		return true
	}
	for st := range podutil.ContainerStatuses(&pod.Status) {
		has, known := a.Containers[st.Name]
		shown := corev1.ResourceRequirements{Requests: st.AllocatedResources, Limits: has.Limits}
		if known && st.AllocatedResources != nil && !podutil.SameResources(shown, has) {
			return true
		}
	}
	return false
}

// only keeps CPU and memory.
func only(r corev1.ResourceRequirements) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: onlyList(r.Requests), Limits: onlyList(r.Limits)}
}

func onlyList(list corev1.ResourceList) corev1.ResourceList {
	var out corev1.ResourceList
	for _, name := range podutil.ComputeResources {
		if q, ok := list[name]; ok {
			if out == nil {
				out = corev1.ResourceList{}
			}
			out[name] = q
		}
	}
	return out
}

// apply returns the pod with the allocated resources in its spec; the pod itself if they are the same.
func (a *allocation) apply(pod *corev1.Pod) *corev1.Pod {
	out := pod
	own := func() *corev1.PodSpec {
		if out == pod {
			shallow := *pod
			shallow.Spec = podutil.CloneContainers(&pod.Spec)
			out = &shallow
		}
		return &out.Spec
	}
	for _, c := range podutil.Containers(&pod.Spec) {
		if has, ok := a.Containers[c.Name]; ok && !podutil.SameResources(has, c.Resources) {
			_, changed := podutil.Container(own(), c.Name)
			changed.Resources = merged(c.Resources, has)
		}
	}
	if r := pod.Spec.Resources; r != nil && !podutil.SameResources(a.Pod, *r) {
		all := merged(*r, a.Pod)
		own().Resources = &all
	}
	return out
}

// merged returns r with the CPU and memory of has.
func merged(r, has corev1.ResourceRequirements) corev1.ResourceRequirements {
	put := func(list, has corev1.ResourceList) corev1.ResourceList {
		out := corev1.ResourceList{}
		for name, q := range list {
			if !slices.Contains(podutil.ComputeResources[:], name) {
				out[name] = q
			}
		}
		maps.Copy(out, has)
		if len(out) == 0 {
			return nil
		}
		return out
	}
	r.Requests, r.Limits = put(r.Requests, has.Requests), put(r.Limits, has.Limits)
	return r
}
