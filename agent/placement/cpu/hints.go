package cpu

import (
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/numa"
)

// only returns the hints of a provider that serves CPUs alone.
func only(hints []numa.Hint) numa.Hints { return numa.Hints{string(corev1.ResourceCPU): hints} }

// Hints returns from which NUMA nodes a container can get its CPUs; nil if it asks for none of its own. reuse are the
// CPUs that earlier containers of the pod pass on.
func (p *Policy) Hints(s *State, pod *corev1.Pod, c *corev1.Container, reuse cpuset.CPUSet) numa.Hints {
	n := p.Exclusive(pod, c)
	if n == 0 {
		return nil
	}
	return only(p.hints(p.Free(s), reuse, n))
}

// PodHints returns from which NUMA nodes a pod can get the CPUs of all its containers.
func (p *Policy) PodHints(s *State, pod *corev1.Pod) numa.Hints {
	n := p.OfPod(pod)
	if n == 0 {
		return nil
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) && p.leavesShared(pod) != nil {
		return only([]numa.Hint{})
	}
	return only(p.hints(p.Free(s), cpuset.New(), n))
}

// hints returns the sets of NUMA nodes with n available CPUs, counting those to reuse, all of which must be inside. A
// set is preferred if no smaller one has n CPUs, available or not.
func (p *Policy) hints(available, reuse cpuset.CPUSet, n int) []numa.Hint {
	free, reusable := p.PerNode(available), p.PerNode(reuse)
	total := p.PerNode(p.all)
	hints, least := numa.Find(p.nodeIDs, func(mask numa.Mask) bool { return sum(total, mask) >= n },
		func(mask numa.Mask) bool {
			return sum(reusable, mask) == reuse.Size() && sum(free, mask)+reuse.Size() >= n
		})
	for i := range hints {
		hints[i].Preferred = hints[i].Preferred || p.options.AlignSocket && p.socketAligned(hints[i].Nodes, least)
	}
	return hints
}

func sum(perNode map[int]int, mask numa.Mask) int {
	n := 0
	for id, count := range perNode {
		if mask.Has(id) {
			n += count
		}
	}
	return n
}

// socketAligned reports whether the nodes belong to no more sockets than the request needs, which are those of least
// nodes.
func (p *Policy) socketAligned(nodes numa.Mask, least int) bool {
	perSocket := p.nodes / p.sockets
	return perSocket > 0 && len(p.socketsOf(nodes.Has)) == (least+perSocket-1)/perSocket
}
