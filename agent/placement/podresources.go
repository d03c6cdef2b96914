package placement

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/memory"
	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/placement/policy"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/plugins/devices"
)

// OfContainer implements devices.Exclusive. What the containers of a pod share is not theirs but the pod's.
func (m *Manager) OfContainer(pod *corev1.Pod, c *corev1.Container) (own devices.Share) {
	m.mu.Lock()
	defer m.mu.Unlock()
	own.CPUs = wide(m.ownCPUs(pod, c).List())
	if !m.divides(pod) || podutil.IsGuaranteed(c) {
		own.Memory = memoryBlocks(m.state.Memory.Containers[string(pod.UID)][c.Name])
	}
	return own
}

// HasCPUs reports whether a container has CPUs for itself.
func (m *Manager) HasCPUs(pod *corev1.Pod, c *corev1.Container) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.ownCPUs(pod, c).IsEmpty()
}

// ownCPUs returns the CPUs that only one container may use. mu is held.
func (m *Manager) ownCPUs(pod *corev1.Pod, c *corev1.Container) cpuset.CPUSet {
	set, own := m.state.CPU.Of(pod.UID, c.Name)
	if !own || m.divides(pod) && podutil.ExclusiveCPUs(pod, c, true) == 0 {
		return cpuset.New()
	}
	return set
}

// divides reports whether containers of a pod that have nothing for themselves share what the pod has.
func (m *Manager) divides(pod *corev1.Pod) bool {
	return m.policy.PodResources && resourcehelper.IsPodLevelResourcesSet(pod)
}

// OfPod implements devices.Exclusive.
func (m *Manager) OfPod(pod types.UID) devices.Share {
	m.mu.Lock()
	defer m.mu.Unlock()
	return devices.Share{
		CPUs:   wide(m.state.CPU.Pods[pod].List()),
		Memory: memoryBlocks(m.state.Memory.Pods[string(pod)]),
	}
}

// All implements devices.Exclusive.
func (m *Manager) All() (all devices.Share) {
	if m.policy.CPU != nil {
		all.CPUs = wide(m.policy.CPU.Allocatable().List())
	}
	if m.policy.Memory != nil {
		all.Memory = memoryBlocks(m.policy.Memory.Allocatable())
	}
	return all
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
// node the hints double. With all policies off, nothing depends on devices here, and the machine was not read.
func (m *Manager) devicesFor(pod *corev1.Pod) policy.Devices {
	if m.cfg.Settings.off() {
		return nil
	}
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
