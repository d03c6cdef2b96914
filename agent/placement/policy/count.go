package policy

import (
	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Count is what happened during one decision, for metrics.
type Count struct {
	// CPUs and Memory are how often a container or pod asked for some of its own; CPUErrors and MemoryErrors how often in
	// vain.
	CPUs, CPUErrors, Memory, MemoryErrors int
	// Aligned and Misaligned count decisions by what was aligned.
	Aligned, Misaligned map[Alignment]int
	// Allocations and AllocationErrors count by source, Assignments by type. As with the kubelet, they are empty unless
	// the feature gate PodLevelResourceManagers is on.
	Allocations, AllocationErrors, Assignments map[Share]int
}

func newCount() Count {
	return Count{
		Aligned:          map[Alignment]int{},
		Misaligned:       map[Alignment]int{},
		Allocations:      map[Share]int{},
		AllocationErrors: map[Share]int{},
		Assignments:      map[Share]int{},
	}
}

// Alignment names what was aligned, in the words of the kubelet's metric container_aligned_compute_resources_count.
type Alignment struct{ Scope, Boundary string }

// What can be aligned.
var (
	AlignedNode    = Alignment{"container", "numa_node"}
	AlignedPodNode = Alignment{"pod", "numa_node"}
	AlignedCores   = Alignment{"container", "physical_cpu"}
	AlignedCache   = Alignment{"container", "uncore_cache"}
)

// Share names what containers get, in the words of the kubelet's metrics resource_manager_*: the resource, and either
// its source or the type of its assignment.
type Share struct{ Resource, Of string }

// Labels of the kubelet's metrics resource_manager_*.
const (
	resourceCPU    = "cpu"
	resourceMemory = "memory"

	sourceNode = "node"
	sourcePod  = "pod"

	nodeExclusive = "node_exclusive"
	podExclusive  = "pod_exclusive"
	podShared     = "pod_shared"
)

// countOwn counts that a container got a resource of the node for itself, in n allocations.
func (a *admission) countOwn(resource string, n int) {
	if a.PodResources {
		a.Count.Allocations[Share{resource, sourceNode}] += n
		a.Count.Assignments[Share{resource, nodeExclusive}]++
	}
}

// countError counts that there was not enough of a resource for a container or pod.
func (a *admission) countError(resource, source string) {
	if a.PodResources {
		a.Count.AllocationErrors[Share{resource, source}]++
	}
}

// countParts counts how the containers of a pod use what it got as a whole. own reports whether a container has a part
// for itself; countParts returns how many have.
func (a *admission) countParts(resource string, own func(*corev1.Container) bool) int {
	exclusive := 0
	for _, c := range podutil.ContainersWithResources(&a.pod.Spec) {
		assignment := podShared
		if own(c) {
			assignment = podExclusive
			exclusive++
		}
		a.Count.Allocations[Share{resource, sourcePod}]++
		a.Count.Assignments[Share{resource, assignment}]++
	}
	return exclusive
}
