package podstate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Size holds the cgroup settings for CPU and memory, as in the CRI's LinuxContainerResources. 0 means no limit.
type Size struct {
	Shares int64 // CPU weight, 1024 for each CPU
	Quota  int64 // µs of CPU time per Period
	Period int64 // µs
	Memory int64 // bytes
}

// Allocation holds the resources that are allocated to a pod now (KEP-1287). Desired.Pod has the same resources in
// its spec.
type Allocation struct {
	// Generation is the generation of the spec that requested them.
	Generation int64
	// Containers holds the allocated resources of containers by name, also those of init containers and sidecars. Pod
	// is the size of the pod's own cgroup.
	Containers map[string]ContainerAllocation
	Pod        Size
	// Requests and Limits are those of the whole pod.
	Requests, Limits corev1.ResourceList
	// Pending is a later resize that is not allocated; nil if there is none.
	Pending *PendingResize
	// Before are the resources, like those in Containers, that instances had before their first resize, by ID.
	Before map[string]corev1.ResourceRequirements
}

// ContainerAllocation holds the resources that are allocated to one container.
type ContainerAllocation struct {
	Size Size
	// Resources has only CPU and memory. If the container has no limit, the pod's limit takes its place.
	Resources corev1.ResourceRequirements
}

// PendingResize is a resize that cannot be allocated now, with the reason.
type PendingResize struct {
	Generation int64
	// Reason is Deferred or Infeasible.
	Reason  string
	Message string
}

// Normal returns the same value for all sizes with the same meaning.
func (s Size) Normal() Size {
	s.Shares = max(0, s.Shares)
	s.Quota = max(0, s.Quota)
	s.Memory = max(0, s.Memory)
	if s.Quota == 0 {
		s.Period = 0
	}
	return s
}

// Wider returns the smallest size that covers both s and t.
func (s Size) Wider(t Size) Size {
	s, t = s.Normal(), t.Normal()
	out := Size{Shares: max(s.Shares, t.Shares)}
	if s.Memory > 0 && t.Memory > 0 {
		out.Memory = max(s.Memory, t.Memory)
	}
	switch {
	case s.Quota == 0 || t.Quota == 0:
	case s.Quota*t.Period >= t.Quota*s.Period:
		out.Quota, out.Period = s.Quota, s.Period
	default:
		out.Quota, out.Period = t.Quota, t.Period
	}
	return out
}

func (s Size) String() string {
	return fmt.Sprintf("shares %d, quota %d/%d, memory %d", s.Shares, s.Quota, s.Period, s.Memory)
}
