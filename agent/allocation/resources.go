package allocation

import (
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Resources are the resources that are allocated to a pod, and those that it requests instead. The zero value is those
// of a pod that no source knows.
type Resources struct {
	// allocated is what the pod holds, pod the pod with that in its spec. Both may be nil.
	allocated *allocation
	pod       *corev1.Pod
	// resizing: the spec requests other resources. pending is why they are not allocated yet; nil if that was not
	// decided.
	resizing bool
	pending  *podstate.PendingResize
	// demand is what the pod adds to the demand of its class.
	demand podstate.Demand
}

// update records a new version of the pod. mayResize is false for a pod that ends or was refused.
func (r *Resources) update(pod *corev1.Pod, mayResize bool) {
	r.pod = r.allocated.apply(pod)
	r.resizing = mayResize && r.pod != pod
	if !r.resizing {
		r.pending = nil
	}
	if r.pod == pod {
		r.allocated.Generation = max(r.allocated.Generation, pod.Generation)
	}
	r.demand = demandOf(r.pod)
}

// Pod returns the pod with the allocated resources in its spec; nil if nothing is allocated.
func (r *Resources) Pod() *corev1.Pod { return r.pod }

// Demand returns what the pod adds to the demand of its class.
func (r *Resources) Demand() podstate.Demand { return r.demand }

// Resizing reports whether the pod requests other resources.
func (r *Resources) Resizing() bool { return r.resizing }

// Undecided reports whether the pod requests other resources, about which is not decided yet.
func (r *Resources) Undecided() bool { return r.resizing && r.pending == nil }

// Pending returns why the resources that the pod requests are not allocated; nil if that is not so, or not decided.
func (r *Resources) Pending() *podstate.PendingResize { return r.pending }

// GiveUp ends the resize of a pod that is refused or has to end.
func (r *Resources) GiveUp() { r.resizing = false }

// resize allocates what the spec of the pod asks for.
func (r *Resources) resize(pod *corev1.Pod) {
	next := desiredResources(pod)
	next.Before = map[string]corev1.ResourceRequirements{}
	for st := range podutil.ContainerStatuses(&pod.Status) {
		id := podutil.RuntimeID(st.ContainerID)
		if before, known := r.allocated.Before[id]; known {
			next.Before[id] = before
		} else if _, c := podutil.Container(&r.pod.Spec, st.Name); c != nil {
			next.Before[id] = spec.EffectiveResources(r.pod, c)
		}
	}
	*r = Resources{allocated: next, pod: pod, demand: demandOf(pod)}
}

// ForPlan converts the allocation to what the planner needs to know; nil if nothing is allocated.
func (r *Resources) ForPlan(node *spec.Node) *podstate.Allocation {
	if r.allocated == nil {
		return nil
	}
	a := &podstate.Allocation{
		Generation: r.allocated.Generation,
		Pending:    r.pending,
		Before:     r.allocated.Before,
		Pod:        spec.PodCgroup(r.pod, node).Size,
		Containers: make(map[string]podstate.ContainerAllocation, len(r.pod.Spec.Containers)),
		Requests:   resourcehelper.PodRequests(r.pod, resourcehelper.PodResourcesOptions{}),
		Limits:     resourcehelper.PodLimits(r.pod, resourcehelper.PodResourcesOptions{}),
	}
	for _, c := range podutil.ContainersWithResources(&r.pod.Spec) {
		a.Containers[c.Name] = podstate.ContainerAllocation{
			Size:      spec.SizeOf(spec.ContainerResources(r.pod, c, node)),
			Resources: spec.EffectiveResources(r.pod, c),
		}
	}
	return a
}

// demandOf returns what a pod adds to the demand of its class.
func demandOf(pod *corev1.Pod) (d podstate.Demand) {
	if len(pod.Spec.Containers) == 0 {
		return d
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	switch podutil.QOS(pod) {
	case corev1.PodQOSGuaranteed:
		d.GuaranteedMemory = podutil.Amount(requests, corev1.ResourceMemory)
	case corev1.PodQOSBurstable:
		d.BurstableCPU = podutil.Amount(requests, corev1.ResourceCPU)
		d.BurstableMemory = podutil.Amount(requests, corev1.ResourceMemory)
	}
	return d
}
