package placement

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nodelet/nodelet/agent/placement/memory"
	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/placement/policy"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// CPUs returns the CPUs that a container has for itself, for the pod resources API. What the containers of a pod share
// is not theirs but the pod's.
func (m *Manager) CPUs(pod *corev1.Pod, c *corev1.Container) []int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	set, own := m.state.CPU.Of(pod.UID, c.Name)
	if !own || m.divides(pod) && podutil.ExclusiveCPUs(pod, c, true) == 0 {
		return nil
	}
	return wide(set.List())
}

// Memory returns the memory that a container has of certain NUMA nodes.
func (m *Manager) Memory(pod *corev1.Pod, c *corev1.Container) []*podresources.ContainerMemory {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.divides(pod) && !podutil.IsGuaranteed(c) {
		return nil
	}
	return memoryBlocks(m.state.Memory.Containers[string(pod.UID)][c.Name])
}

// divides reports whether containers of a pod that have nothing for themselves share what the pod has.
func (m *Manager) divides(pod *corev1.Pod) bool {
	return m.policy.PodResources && resourcehelper.IsPodLevelResourcesSet(pod)
}

// PodCPUs returns the CPUs that a pod has as a whole.
func (m *Manager) PodCPUs(pod types.UID) []int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return wide(m.state.CPU.Pods[pod].List())
}

// PodMemory returns the memory that a pod has as a whole.
func (m *Manager) PodMemory(pod types.UID) []*podresources.ContainerMemory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return memoryBlocks(m.state.Memory.Pods[string(pod)])
}

// AllCPUs and AllMemory are what containers can get for themselves on an empty node.
func (m *Manager) AllCPUs() []int64 {
	if m.policy.CPU == nil {
		return nil
	}
	return wide(m.policy.CPU.Allocatable().List())
}

// AllMemory is described at AllCPUs.
func (m *Manager) AllMemory() []*podresources.ContainerMemory {
	if m.policy.Memory == nil {
		return nil
	}
	return memoryBlocks(m.policy.Memory.Allocatable())
}

func wide(ids []int) []int64 {
	out := make([]int64, len(ids))
	for i, id := range ids {
		out[i] = int64(id)
	}
	return out
}

func memoryBlocks(blocks []memory.Block) []*podresources.ContainerMemory {
	var out []*podresources.ContainerMemory
	for _, b := range blocks {
		one := &podresources.ContainerMemory{MemoryType: string(b.Type), Size: b.Size, Topology: &podresources.TopologyInfo{}}
		for _, id := range b.NUMAAffinity {
			one.Topology.Nodes = append(one.Topology.Nodes, &podresources.NUMANode{ID: int64(id)})
		}
		out = append(out, one)
	}
	return out
}

// devicesFor returns the devices that a pod can get. NUMA nodes that the machine does not have do not count: with each
// node the hints double.
func (m *Manager) devicesFor(pod *corev1.Pod) policy.Devices {
	views, known := m.cfg.Devices(pod), numa.MaskOf(m.cfg.Machine.NodeIDs()...)
	all := make(policy.Devices, len(views))
	for name, v := range views {
		r := policy.Resource{All: make(map[string]numa.Mask, len(v.All)), Free: v.Free}
		for id, nodes := range v.All {
			for _, node := range nodes {
				r.All[id] |= numa.MaskOf(int(node)) & known
			}
		}
		all[name] = r
	}
	return all
}
