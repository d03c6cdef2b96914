package memory

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/placement/numa"
)

// The types below have the names and fields of the kubelet's: the checksum of its state file is over a text that holds
// them.

// MemoryTable counts one kind of memory of a NUMA node, in bytes. Allocatable is TotalMemSize without SystemReserved
// and, for ordinary memory, without huge pages. Invariant: Reserved + Free == Allocatable.
type MemoryTable struct {
	TotalMemSize   uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"reserved"`
	Free           uint64 `json:"free"`
}

// NUMANodeState is what containers have of one NUMA node.
type NUMANodeState struct {
	// NumberOfAssignments counts the blocks of containers that name the node.
	NumberOfAssignments int `json:"numberOfAssignments"`
	// MemoryMap has the memory by kind: memory, hugepages-2Mi, ….
	MemoryMap map[corev1.ResourceName]*MemoryTable `json:"memoryMap"`
	// Cells are the nodes that serve containers together with this one, and this one itself.
	Cells []int `json:"cells"`
}

// NUMANodeMap is what containers have of each NUMA node.
type NUMANodeMap map[int]*NUMANodeState

// Block is memory of one kind that a container has of a set of NUMA nodes.
type Block struct {
	NUMAAffinity []int               `json:"numaAffinity"`
	Type         corev1.ResourceName `json:"type"`
	// Size is in bytes. It can be 0 for an init container whose memory a later container uses.
	Size uint64 `json:"size"`
}

// ContainerMemoryAssignments are the blocks of containers, by pod UID and name.
type ContainerMemoryAssignments map[string]map[string][]Block

// State says who has which memory. The zero value is a state that no policy has initialized.
type State struct {
	Machine    NUMANodeMap
	Containers ContainerMemoryAssignments
	// Pods are the blocks of pods that have them as a whole, by pod UID. Those of their containers are parts of them.
	Pods map[string][]Block
}

// Clone returns a copy that can be changed.
func (s State) Clone() State {
	out := State{
		Machine:    make(NUMANodeMap, len(s.Machine)),
		Containers: make(ContainerMemoryAssignments, len(s.Containers)),
		Pods:       maps.Clone(s.Pods),
	}
	if out.Pods == nil {
		out.Pods = map[string][]Block{}
	}
	for id, n := range s.Machine {
		if n == nil {
			continue
		}
		tables := make(map[corev1.ResourceName]*MemoryTable, len(n.MemoryMap))
		for kind, table := range n.MemoryMap {
			if table != nil {
				copied := *table
				tables[kind] = &copied
			}
		}
		out.Machine[id] = &NUMANodeState{
			NumberOfAssignments: n.NumberOfAssignments,
			MemoryMap:           tables,
			Cells:               slices.Clone(n.Cells),
		}
	}
	for uid, of := range s.Containers {
		out.Containers[uid] = make(map[string][]Block, len(of))
		for name, blocks := range of {
			out.Containers[uid][name] = slices.Clone(blocks)
		}
	}
	return out
}

// Nodes returns the NUMA nodes that a container's memory comes from; none if it may come from any.
func (s *State) Nodes(pod types.UID, container string) numa.Mask {
	var m numa.Mask
	for _, b := range s.Containers[string(pod)][container] {
		m |= numa.MaskOf(b.NUMAAffinity...)
	}
	return m
}

// free and allocatable return how many bytes a set of nodes has of one kind of memory.
func (m NUMANodeMap) free(nodes numa.Mask, kind corev1.ResourceName) uint64 {
	return m.sum(nodes, kind, func(t *MemoryTable) uint64 { return t.Free })
}

func (m NUMANodeMap) allocatable(nodes numa.Mask, kind corev1.ResourceName) uint64 {
	return m.sum(nodes, kind, func(t *MemoryTable) uint64 { return t.Allocatable })
}

func (m NUMANodeMap) sum(nodes numa.Mask, kind corev1.ResourceName, of func(*MemoryTable) uint64) (total uint64) {
	for id, n := range m {
		if table := n.MemoryMap[kind]; table != nil && nodes.Has(id) {
			total += of(table)
		}
	}
	return total
}

// ids returns the IDs of the nodes, sorted.
func (m NUMANodeMap) ids() []int { return slices.Sorted(maps.Keys(m)) }

// assign takes size bytes from the nodes of a block, in order, and counts the block. It reports whether the machine has
// the nodes and the kind of memory.
func (m NUMANodeMap) assign(b Block, size uint64) bool {
	for _, id := range b.NUMAAffinity {
		n := m[id]
		if n == nil || n.MemoryMap[b.Type] == nil {
			return false
		}
		n.NumberOfAssignments++
		n.Cells = slices.Clone(b.NUMAAffinity)
		table := n.MemoryMap[b.Type]
		part := min(size, table.Free)
		table.Reserved += part
		table.Free -= part
		size -= part
	}
	return true
}

// release is the reverse of assign.
func (m NUMANodeMap) release(b Block) {
	size := b.Size
	for _, id := range b.NUMAAffinity {
		n := m[id]
		if n == nil {
			continue
		}
		n.NumberOfAssignments--
		if n.NumberOfAssignments == 0 {
			n.Cells = []int{id}
		}
		table := n.MemoryMap[b.Type]
		if table == nil {
			continue
		}
		part := min(size, table.Reserved)
		table.Free += part
		table.Reserved -= part
		size -= part
	}
}

// Release gives back everything that a pod has.
func (s *State) Release(pod types.UID) {
	uid := string(pod)
	blocks, whole := s.Pods[uid]
	if !whole {
		for _, of := range s.Containers[uid] {
			blocks = append(blocks, of...)
		}
	}
	for _, b := range blocks {
		s.Machine.release(b)
	}
	delete(s.Pods, uid)
	delete(s.Containers, uid)
}

// ReleaseContainer gives back what one container of a pod has, and reports whether it had anything. Containers of a pod
// that has its memory as a whole give back nothing before the last of them.
func (s *State) ReleaseContainer(pod types.UID, name string) (had bool) {
	uid := string(pod)
	blocks, had := s.Containers[uid][name]
	if !had {
		return false
	}
	if _, whole := s.Pods[uid]; !whole {
		for _, b := range blocks {
			s.Machine.release(b)
		}
	} else if len(s.Containers[uid]) == 1 {
		s.Release(pod)
		return true
	}
	delete(s.Containers[uid], name)
	if len(s.Containers[uid]) == 0 {
		delete(s.Containers, uid)
	}
	return true
}
