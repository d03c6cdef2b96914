package managers

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/cadvisor/lib/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	cpustate "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	cputopology "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	memorystate "k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/placement/policy"
	"github.com/nodelet/nodelet/host/topology"
)

// device is the resource of the devices.
const device = "example.com/device"

// kubelet is the kubelet's side: its policies with states in memory.
type kubelet struct {
	log      klog.Logger
	topology topologymanager.Manager
	cpu      cpumanager.Policy
	cpus     cpustate.State
	memory   memorymanager.Policy
	mem      memorystate.State
	devices  *deviceHints
	// given are the CPUs that the containers of the last pod got, even if the pod was refused in the end.
	given map[string]cpuset.CPUSet
	// whole are the CPUs that the pod got as a whole, if it has resources of its own.
	whole cpuset.CPUSet
}

// newKubelet returns the kubelet's side, or the error with which it would not start.
func newKubelet(m *topology.Machine, s settings) (*kubelet, error) {
	k := &kubelet{log: klog.Background(), devices: &deviceHints{}}
	info := machineInfo(m)
	var err error
	k.topology, err = topologymanager.NewManager(k.log, info.Topology, s.topology, s.scope, s.topologyOptions)
	if err != nil {
		return nil, err
	}
	k.topology.AddHintProvider(k.log, k.devices)
	if s.cpu {
		layout, err := cputopology.Discover(k.log, info)
		if err != nil {
			return nil, err
		}
		k.cpu, err = cpumanager.NewStaticPolicy(k.log, layout, s.reservedCount(), s.reserved, k.topology, s.cpuOptions)
		if err != nil {
			return nil, err
		}
		k.cpus = cpustate.NewMemoryState(k.log)
		if err := k.cpu.Start(k.log, k.cpus); err != nil {
			return nil, err
		}
		k.topology.AddHintProvider(k.log, cpuProvider{k})
	}
	if s.memory {
		k.memory, err = memorymanager.NewPolicyStatic(k.log, info, map[int]map[corev1.ResourceName]uint64(s.reservedMemory),
			k.topology)
		if err != nil {
			return nil, err
		}
		k.mem = memorystate.NewMemoryState(k.log)
		if err := k.memory.Start(k.log, k.mem); err != nil {
			return nil, err
		}
		k.topology.AddHintProvider(k.log, memoryProvider{k})
	}
	return k, nil
}

// admit admits a pod. A refused pod keeps nothing: the kubelet removes what it has at the next opportunity.
func (k *kubelet) admit(pod *corev1.Pod, devices policy.Devices) lifecycle.PodAdmitResult {
	k.devices.now = devices
	attributes := &lifecycle.PodAdmitAttributes{Pod: pod, Operation: lifecycle.AddOperation}
	result := k.topology.Admit(context.Background(), attributes)
	if k.cpu != nil {
		k.given = k.cpus.GetCPUAssignments()[string(pod.UID)]
		k.whole, _ = k.cpus.GetPodCPUSet(string(pod.UID))
	}
	if !result.Admit {
		k.remove(pod)
	}
	return result
}

// started tells that a container of a pod has started.
func (k *kubelet) started(pod *corev1.Pod, name string) {
	if k.memory == nil {
		return
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == name {
			return
		}
		if c.RestartPolicy == nil {
			k.memory.RemoveContainer(k.log, k.mem, string(pod.UID), c.Name)
		}
	}
}

func (k *kubelet) remove(pod *corev1.Pod) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if k.cpu != nil {
			k.cpu.RemoveContainer(k.log, k.cpus, string(pod.UID), c.Name)
		}
		if k.memory != nil {
			k.memory.RemoveContainer(k.log, k.mem, string(pod.UID), c.Name)
		}
	}
}

// machineInfo returns a machine in the form that the kubelet gets from cAdvisor.
func machineInfo(m *topology.Machine) *model.MachineInfo {
	info := &model.MachineInfo{NumCores: len(m.CPUs)}
	sockets := map[int]bool{}
	for _, n := range m.Nodes {
		node := model.Node{Id: n.ID, Memory: n.Memory, Distances: n.Distances}
		for _, size := range sortedKeys(n.HugePages) {
			node.HugePages = append(node.HugePages, model.HugePagesInfo{
				PageSize: size / 1024,
				NumPages: n.HugePages[size] / size,
			})
		}
		at := map[int]int{}
		for _, c := range m.CPUs {
			if c.Node != n.ID {
				continue
			}
			sockets[c.Socket] = true
			i, seen := at[c.Core]
			if !seen {
				i = len(node.Cores)
				at[c.Core] = i
				node.Cores = append(node.Cores, model.Core{
					Id:           c.Core,
					SocketID:     c.Socket,
					UncoreCaches: []model.Cache{{Id: c.Cache, Level: 3}},
				})
			}
			node.Cores[i].Threads = append(node.Cores[i].Threads, c.ID)
		}
		info.NumPhysicalCores += len(node.Cores)
		info.Topology = append(info.Topology, node)
	}
	info.NumSockets = len(sockets)
	return info
}

// cpuProvider makes a hint provider of the CPU policy.
type cpuProvider struct{ *kubelet }

func (p cpuProvider) GetTopologyHints(log klog.Logger, pod *corev1.Pod, c *corev1.Container,
	op lifecycle.Operation) map[string][]topologymanager.TopologyHint {
	return p.cpu.GetTopologyHints(log, p.cpus, pod, c, op)
}

func (p cpuProvider) GetPodTopologyHints(log klog.Logger, pod *corev1.Pod,
	op lifecycle.Operation) map[string][]topologymanager.TopologyHint {
	return p.cpu.GetPodTopologyHints(log, p.cpus, pod, op)
}

func (p cpuProvider) AllocatePod(log klog.Logger, pod *corev1.Pod, op lifecycle.Operation) error {
	return p.cpu.AllocatePod(log, p.cpus, pod, op)
}

func (p cpuProvider) Allocate(_ context.Context, pod *corev1.Pod, c *corev1.Container, op lifecycle.Operation) error {
	return p.cpu.Allocate(p.log, p.cpus, pod, c, op)
}

// memoryProvider makes a hint provider of the memory policy.
type memoryProvider struct{ *kubelet }

func (p memoryProvider) GetTopologyHints(log klog.Logger, pod *corev1.Pod, c *corev1.Container,
	op lifecycle.Operation) map[string][]topologymanager.TopologyHint {
	return p.memory.GetTopologyHints(log, p.mem, pod, c, op)
}

func (p memoryProvider) GetPodTopologyHints(log klog.Logger, pod *corev1.Pod,
	op lifecycle.Operation) map[string][]topologymanager.TopologyHint {
	return p.memory.GetPodTopologyHints(log, p.mem, pod, op)
}

func (p memoryProvider) AllocatePod(log klog.Logger, pod *corev1.Pod, op lifecycle.Operation) error {
	return p.memory.AllocatePod(log, p.mem, pod, op)
}

func (p memoryProvider) Allocate(ctx context.Context, pod *corev1.Pod, c *corev1.Container,
	op lifecycle.Operation) error {
	return p.memory.Allocate(ctx, p.mem, pod, c, op)
}

// deviceHints gives the kubelet's side the hints of devices. The kubelet's own device manager needs plugins, so the
// test computes them.
type deviceHints struct{ now policy.Devices }

func (d *deviceHints) GetTopologyHints(_ klog.Logger, _ *corev1.Pod, c *corev1.Container,
	_ lifecycle.Operation) map[string][]topologymanager.TopologyHint {
	return d.hints(c.Resources.Limits)
}

// GetPodTopologyHints relies on that one container of a pod asks for devices.
func (d *deviceHints) GetPodTopologyHints(_ klog.Logger, pod *corev1.Pod,
	_ lifecycle.Operation) map[string][]topologymanager.TopologyHint {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if all := d.hints(c.Resources.Limits); len(all) > 0 {
			return all
		}
	}
	return nil
}

// hints returns a hint for each set of NUMA nodes that has enough free devices. It is preferred if it has as many nodes
// as the smallest set that has enough devices, free or not.
func (d *deviceHints) hints(limits corev1.ResourceList) map[string][]topologymanager.TopologyHint {
	q, asks := limits[device]
	if !asks {
		return nil
	}
	n, r := int(q.Value()), d.now[device]
	var nodes numa.Mask
	for _, of := range r.All {
		nodes |= of
	}
	if nodes == 0 {
		return map[string][]topologymanager.TopologyHint{device: nil}
	}
	least, list := nodes.Count(), []topologymanager.TopologyHint{}
	for mask := range numa.Subsets(nodes.Nodes()) {
		all, free := 0, 0
		for id, of := range r.All {
			if of&mask != 0 {
				all++
				if slices.Contains(r.Free, id) {
					free++
				}
			}
		}
		if all >= n {
			least = min(least, mask.Count())
		}
		if free >= n {
			bits, err := bitmask.NewBitMask(mask.Nodes()...)
			if err != nil {
				panic(err)
			}
			list = append(list, topologymanager.TopologyHint{NUMANodeAffinity: bits})
		}
	}
	for i := range list {
		list[i].Preferred = list[i].NUMANodeAffinity.Count() == least
	}
	return map[string][]topologymanager.TopologyHint{device: list}
}

func (d *deviceHints) AllocatePod(klog.Logger, *corev1.Pod, lifecycle.Operation) error { return nil }

func (d *deviceHints) Allocate(context.Context, *corev1.Pod, *corev1.Container, lifecycle.Operation) error {
	return nil
}

// describe returns what the kubelet's side has of a pod, as text.
func (k *kubelet) describe(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	text := ""
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if k.cpu != nil {
			set, ok := k.cpus.GetCPUSet(string(pod.UID), c.Name)
			text += fmt.Sprintf("%s cpus %s %v; ", c.Name, set, ok)
		}
		if k.memory != nil {
			blocks := slices.Clone(k.mem.GetMemoryBlocks(string(pod.UID), c.Name))
			slices.SortFunc(blocks, func(a, b memorystate.Block) int { return compareText(a.Type, b.Type) })
			text += fmt.Sprintf("%s memory %v; ", c.Name, blocks)
		}
	}
	return text
}

// describeAll returns the rest of the kubelet's state as text.
func (k *kubelet) describeAll() string {
	text := ""
	if k.cpu != nil {
		text += "shared " + k.cpus.GetDefaultCPUSet().String()
	}
	if k.memory != nil {
		machine := k.mem.GetMachineState()
		for _, id := range sortedKeys(machine) {
			text += fmt.Sprintf("; node %d: %d %v", id, machine[id].NumberOfAssignments, machine[id].Cells)
			for _, kind := range sortedKeys(machine[id].MemoryMap) {
				text += fmt.Sprintf(" %s %v", kind, *machine[id].MemoryMap[kind])
			}
		}
	}
	return text
}
