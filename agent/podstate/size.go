package podstate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Size is a setting of CPU and memory for the kernel, in the terms of the CRI's LinuxContainerResources. 0
// is no bound.
type Size struct {
	Shares int64 // CPU weight, 1024 a CPU
	Quota  int64 // µs of CPU time in a Period
	Period int64 // µs
	Memory int64 // bytes
}

// Grant is what of its resources a pod may use now (KEP-1287). Desired.Pod has the same resources in its spec.
type Grant struct {
	// Generation is that of the spec which asked for them.
	Generation int64
	// Containers holds by name what containers may use, init containers and sidecars among them; Pod is the
	// size of the pod's own cgroup.
	Containers map[string]ContainerGrant
	Pod        Size
	// Requests and Limits are those of the pod as a whole.
	Requests, Limits corev1.ResourceList
	// Pending is a later resize that is not granted; nil where there is none.
	Pending *PendingResize
}

// ContainerGrant is what one container may use.
type ContainerGrant struct {
	Size Size
	// Resources are CPU and memory alone; a limit that the container lacks is the pod's.
	Resources corev1.ResourceRequirements
}

// PendingResize says why a resize is not granted.
type PendingResize struct {
	Generation int64
	// Reason is Deferred or Infeasible.
	Reason  string
	Message string
}

// Normal is the one form of all sizes that mean the same.
func (s Size) Normal() Size {
	s.Shares, s.Quota, s.Memory = max(0, s.Shares), max(0, s.Quota), max(0, s.Memory)
	if s.Quota == 0 {
		s.Period = 0
	}
	return s
}

// Wider is the size in which both s and t fit.
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
