package topology

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// CPU is one logical CPU that is online.
type CPU struct {
	// ID is the kernel's number of the CPU.
	ID int
	// Core identifies the physical core: it is the smallest ID of the core's CPUs that are online.
	Core int
	// Socket is the physical package.
	Socket int
	// Node is the NUMA node, or the socket on a kernel without NUMA.
	Node int
	// Cache identifies the uncore (L3) cache. It is the socket if the whole NUMA node shares one cache, or if the kernel
	// does not say.
	Cache int
}

// Node is one NUMA node. It may have no CPU.
type Node struct {
	ID int
	// Memory is in bytes; 0 if the kernel does not say.
	Memory uint64
	// HugePages are the bytes that the kernel has set aside, by page size in bytes.
	HugePages map[uint64]uint64
	// Distances are the distances to all nodes in the order of their IDs; nil if the kernel does not say.
	Distances []uint64
}

// Machine is what the machine consists of. CPUs and Nodes are sorted by ID.
type Machine struct {
	CPUs  []CPU
	Nodes []Node
}

// Online returns the CPUs that are online.
func (m *Machine) Online() cpuset.CPUSet {
	ids := make([]int, len(m.CPUs))
	for i, c := range m.CPUs {
		ids[i] = c.ID
	}
	return cpuset.New(ids...)
}

// NodeIDs returns the IDs of the NUMA nodes, sorted.
func (m *Machine) NodeIDs() []int {
	ids := make([]int, len(m.Nodes))
	for i, n := range m.Nodes {
		ids[i] = n.ID
	}
	return ids
}

// Distance returns the distance between two NUMA nodes; 0 if it is not known.
func (m *Machine) Distance(from, to int) uint64 {
	byID := func(n Node, id int) int { return n.ID - id }
	i, ok := slices.BinarySearchFunc(m.Nodes, from, byID)
	j, ok2 := slices.BinarySearchFunc(m.Nodes, to, byID)
	if !ok || !ok2 || j >= len(m.Nodes[i].Distances) {
		return 0
	}
	return m.Nodes[i].Distances[j]
}

// maxCPU bounds the numbers that ParseCPUs accepts. The kernel supports 8192 CPUs.
const maxCPU = 1 << 16

// ParseCPUs parses a list of CPUs such as 0-3,8, which may be empty. Unlike cpuset.Parse it refuses numbers for which a
// set would need unbounded memory.
func ParseCPUs(text string) (cpuset.CPUSet, error) {
	for _, number := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '-' }) {
		if n, err := strconv.Atoi(number); err != nil || n < 0 || n >= maxCPU {
			return cpuset.New(), fmt.Errorf("%q is not a list of CPUs such as 0-3,8", text)
		}
	}
	set, err := cpuset.Parse(text)
	if err != nil {
		return cpuset.New(), fmt.Errorf("%q is not a list of CPUs such as 0-3,8: %w", text, err)
	}
	return set, nil
}
