package memory

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/host/topology"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Reserved is the memory that containers do not get, in bytes by NUMA node and kind (KubeletConfiguration
// reservedMemory).
type Reserved map[int]map[corev1.ResourceName]uint64

// Policy is the static policy on one machine. It is never changed.
type Policy struct {
	machine      *topology.Machine
	reserved     Reserved
	podResources bool
}

// New returns the policy, or an error if the reservation does not fit the machine. podResources: pods with resources of
// their own get memory as a whole (feature gate PodLevelResourceManagers).
func New(m *topology.Machine, reserved Reserved, podResources bool) (*Policy, error) {
	p := &Policy{machine: m, reserved: reserved, podResources: podResources}
	total := uint64(0)
	for id, kinds := range reserved {
		if !slices.Contains(m.NodeIDs(), id) {
			return nil, fmt.Errorf("the reserved memory configuration references a NUMA node %d that does not exist on this "+
				"machine", id)
		}
		total += kinds[corev1.ResourceMemory]
	}
	if total == 0 {
		return nil, errors.New("the static memory manager policy requires reserved memory: set reservedMemory")
	}
	for _, n := range m.Nodes {
		for kind, has := range memoryOf(&n) {
			if want := reserved[n.ID][kind]; want > has {
				return nil, fmt.Errorf("reservedMemory: NUMA node %d has %d bytes of %s, less than the %d bytes to reserve", n.ID,
					has, kind, want)
			}
		}
	}
	return p, nil
}

// memoryOf returns the memory of a node by kind, ordinary memory without huge pages.
func memoryOf(n *topology.Node) map[corev1.ResourceName]uint64 {
	all := map[corev1.ResourceName]uint64{corev1.ResourceMemory: n.Memory}
	for size, bytes := range n.HugePages {
		all[podutil.HugePages(int64(size))] = bytes
		all[corev1.ResourceMemory] -= min(bytes, all[corev1.ResourceMemory])
	}
	return all
}

// isMemory reports whether a resource is memory or huge pages.
func isMemory(name corev1.ResourceName) bool {
	return name == corev1.ResourceMemory || podutil.IsHugePages(name)
}

// empty returns the state of the machine without any container.
func (p *Policy) empty() NUMANodeMap {
	all := NUMANodeMap{}
	for i := range p.machine.Nodes {
		n := &p.machine.Nodes[i]
		tables := map[corev1.ResourceName]*MemoryTable{}
		for kind, bytes := range memoryOf(n) {
			total := bytes
			if kind == corev1.ResourceMemory {
				total = n.Memory
			}
			reserved := p.reserved[n.ID][kind]
			tables[kind] = &MemoryTable{
				TotalMemSize:   total,
				SystemReserved: reserved,
				Allocatable:    bytes - reserved,
				Free:           bytes - reserved,
			}
		}
		all[n.ID] = &NUMANodeState{MemoryMap: tables, Cells: []int{n.ID}}
	}
	return all
}

// Start returns the state to begin with: s, or the initial state if s is the zero value. An error says that s does not
// fit the machine or the configuration. The ordinary memory of a NUMA node may have another size than in s, as after
// most boots, if it is enough for what containers have.
func (p *Policy) Start(s State) (State, error) {
	if len(s.Machine) == 0 {
		if len(s.Containers) > 0 {
			return s, errors.New("[memorymanager] machine state can not be empty when it has memory assignments")
		}
		return State{Machine: p.empty()}.Clone(), nil
	}
	want := p.empty()
	for _, uid := range slices.Sorted(maps.Keys(s.Containers)) {
		of := s.Containers[uid]
		if whole := s.Pods[uid]; p.podResources && len(whole) > 0 {
			of = map[string][]Block{"": whole}
		}
		for _, name := range slices.Sorted(maps.Keys(of)) {
			for _, b := range of[name] {
				if !want.assign(b, b.Size) {
					return s, fmt.Errorf("[memorymanager] (pod: %s, container: %s) the memory assignment uses a NUMA node or "+
						"memory resource that does not exist", uid, name)
				}
			}
		}
	}
	if !want.serves(s.Machine) {
		return s, errors.New("[memorymanager] the expected machine state is different from the real one")
	}
	out := s.Clone()
	if !want.sized(s.Machine) {
		out.Machine = want
	}
	return out, nil
}

// serves reports whether the machine has the nodes and kinds of memory of another state, with the same reservations and
// huge pages, and gives containers what they have there. How the nodes of a group share it does not count: that depends
// on the order of admissions.
func (m NUMANodeMap) serves(o NUMANodeMap) bool {
	if len(m) != len(o) {
		return false
	}
	for id, n := range m {
		other := o[id]
		if other == nil || n.NumberOfAssignments != other.NumberOfAssignments || len(n.MemoryMap) != len(other.MemoryMap) ||
			numa.MaskOf(n.Cells...) != numa.MaskOf(other.Cells...) {
			return false
		}
		group := numa.MaskOf(n.Cells...)
		for kind, a := range n.MemoryMap {
			b := other.MemoryMap[kind]
			if b == nil || a.SystemReserved != b.SystemReserved ||
				kind != corev1.ResourceMemory && a.TotalMemSize != b.TotalMemSize {
				return false
			}
			reserved := func(t *MemoryTable) uint64 { return t.Reserved }
			if m.sum(group, kind, reserved) != o.sum(group, kind, reserved) {
				return false
			}
		}
	}
	return true
}

// sized reports whether the memory of each node, of which the other state has the same kinds, has the same size there.
func (m NUMANodeMap) sized(o NUMANodeMap) bool {
	for id, n := range m {
		group := numa.MaskOf(n.Cells...)
		for kind, a := range n.MemoryMap {
			b := o[id].MemoryMap[kind]
			if a.TotalMemSize != b.TotalMemSize || a.Allocatable != b.Allocatable || m.free(group, kind) != o.free(group, kind) {
				return false
			}
		}
	}
	return true
}

// Allocatable returns the memory that containers can have, one block for each NUMA node and kind.
func (p *Policy) Allocatable() []Block {
	var all []Block
	empty := p.empty()
	for _, id := range empty.ids() {
		for _, kind := range slices.Sorted(maps.Keys(empty[id].MemoryMap)) {
			if size := empty[id].MemoryMap[kind].Allocatable; size > 0 {
				all = append(all, Block{NUMAAffinity: []int{id}, Type: kind, Size: size})
			}
		}
	}
	return all
}

// managed reports whether the policy serves a pod. Pods with resources of their own need a feature gate.
func (p *Policy) managed(pod *corev1.Pod) bool {
	return podutil.QOS(pod) == corev1.PodQOSGuaranteed && (p.podResources || !resourcehelper.IsPodLevelResourcesSet(pod))
}

// request is how many bytes of each kind of memory are requested.
type request map[corev1.ResourceName]uint64

// kinds returns the requested kinds, sorted.
func (r request) kinds() []corev1.ResourceName { return slices.Sorted(maps.Keys(r)) }

// of returns the memory that a container requests for itself.
func (p *Policy) of(pod *corev1.Pod, c *corev1.Container) (request, error) {
	if p.podResources && resourcehelper.IsPodLevelResourcesSet(pod) && !podutil.IsGuaranteed(c) {
		return request{}, nil
	}
	return requested(c.Resources.Requests, false)
}

// requested returns the memory in a list of requests. positive leaves out requests of 0.
func requested(list corev1.ResourceList, positive bool) (request, error) {
	r := request{}
	for name, q := range list {
		if !isMemory(name) {
			continue
		}
		n, ok := q.AsInt64()
		if !ok {
			return nil, errors.New("[memorymanager] failed to represent quantity as int64")
		}
		if n > 0 || !positive {
			r[name] = uint64(n)
		}
	}
	return r, nil
}

// ofPod returns the memory that the containers of a pod request at a time.
func (p *Policy) ofPod(pod *corev1.Pod) (request, error) {
	if p.podResources && resourcehelper.IsPodLevelResourcesSet(pod) {
		return requested(pod.Spec.Resources.Requests, true)
	}
	init, sidecars := request{}, request{}
	apps := request{}
	for role, c := range podutil.Containers(&pod.Spec) {
		r, err := p.of(pod, c)
		if err != nil {
			return nil, err
		}
		for kind, n := range r {
			switch role {
			case podutil.RoleInit:
				init[kind] = max(init[kind], sidecars[kind]+n)
			case podutil.RoleSidecar:
				sidecars[kind] += n
			case podutil.RoleApp:
				apps[kind] += n
			}
		}
	}
	for kind := range apps { // as with the kubelet, a kind that only init containers request does not count
		apps[kind] = max(apps[kind]+sidecars[kind], init[kind])
	}
	return apps, nil
}
