package managers

import (
	"cmp"
	"slices"

	"github.com/nodelet/nodelet/host/topology"
)

// shape describes a machine.
type shape struct {
	name string
	// sockets, nodes of a socket, caches of a node, cores of a cache and threads of a core. If perNode is set, it is the
	// number of sockets of a NUMA node, and nodes is ignored.
	sockets, nodes, caches, cores, threads int
	perNode                                int
	// adjacent numbers the threads of a core one after the other, otherwise the second threads follow all first ones.
	// alternate deals the cores to the sockets in turn.
	adjacent, alternate bool
	// offline are CPUs that do not count. single are cores that have one thread only.
	offline, single []int
	// sharedCache: all CPUs of a socket share a cache, so the machine has no uncore caches.
	sharedCache bool
	// memory is in GiB a node.
	memory uint64
	// bare is the number of NUMA nodes that have memory and no CPUs.
	bare int
}

// shapes are the machines: some have been seen in bug reports and data sheets, the others cover what these leave out.
var shapes = []shape{
	{name: "one CPU of a virtual machine", sockets: 1, nodes: 1, caches: 1, cores: 1, threads: 1},
	{name: "two CPUs of a virtual machine", sockets: 1, nodes: 1, caches: 1, cores: 2, threads: 1, sharedCache: true},
	{name: "four CPUs with SMT", sockets: 1, nodes: 1, caches: 1, cores: 2, threads: 2, adjacent: true, sharedCache: true},
	{name: "eight CPUs, each a socket", sockets: 8, perNode: 8, caches: 1, cores: 1, threads: 1},
	{name: "sixteen CPUs, each a socket, two NUMA nodes (kubernetes#129078)", sockets: 16, perNode: 8, caches: 1, cores: 1,
		threads: 1},
	{name: "Raspberry Pi 4 (kubernetes#95039)", sockets: 1, nodes: 1, caches: 1, cores: 4, threads: 1, sharedCache: true},
	{name: "desktop with eight cores and SMT", sockets: 1, nodes: 1, caches: 1, cores: 8, threads: 2, sharedCache: true},
	{name: "desktop with two core complexes", sockets: 1, nodes: 1, caches: 2, cores: 8, threads: 2},
	{name: "hybrid Core i7-14700 (kubernetes#140495)", sockets: 1, nodes: 1, caches: 1, cores: 20, threads: 2,
		adjacent: true, sharedCache: true, single: []int{8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}},
	{name: "hybrid Core i9-13900", sockets: 1, nodes: 1, caches: 1, cores: 24, threads: 2, adjacent: true,
		sharedCache: true, single: []int{8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}},
	{name: "SMT switched off, odd CPUs offline (numactl#84)", sockets: 1, nodes: 1, caches: 1, cores: 4, threads: 2,
		adjacent: true, sharedCache: true, offline: []int{1, 3, 5, 7}},
	{name: "one CPU offline (kubernetes#124066)", sockets: 2, nodes: 1, caches: 1, cores: 4, threads: 2, sharedCache: true,
		offline: []int{9}},
	{name: "half a node offline (kubernetes#98121)", sockets: 2, nodes: 1, caches: 1, cores: 12, threads: 2,
		sharedCache: true, offline: []int{12, 13, 14, 15, 16, 17, 36, 37, 38, 39, 40, 41}},
	{name: "two sockets", sockets: 2, nodes: 1, caches: 1, cores: 6, threads: 1, sharedCache: true},
	{name: "two sockets with SMT", sockets: 2, nodes: 1, caches: 1, cores: 6, threads: 2, sharedCache: true},
	{name: "two sockets in turn", sockets: 2, nodes: 1, caches: 1, cores: 8, threads: 2, alternate: true,
		sharedCache: true},
	{name: "DL380 with 56 CPUs (kubernetes#79603)", sockets: 2, nodes: 1, caches: 1, cores: 14, threads: 2,
		sharedCache: true},
	{name: "two sockets, CPUs in turn, 112 (kubernetes#71622)", sockets: 2, nodes: 1, caches: 1, cores: 28, threads: 2,
		alternate: true, sharedCache: true},
	{name: "two sockets of two nodes with 14 CPUs (kubernetes#114642)", sockets: 2, nodes: 2, caches: 1, cores: 14,
		threads: 1, sharedCache: true},
	{name: "two sockets with sub-NUMA clusters", sockets: 2, nodes: 2, caches: 1, cores: 10, threads: 2,
		sharedCache: true},
	{name: "one socket of two nodes", sockets: 1, nodes: 2, caches: 2, cores: 4, threads: 2},
	{name: "one socket of four nodes", sockets: 1, nodes: 4, caches: 2, cores: 4, threads: 2},
	{name: "one socket of four nodes without SMT", sockets: 1, nodes: 4, caches: 4, cores: 2, threads: 1},
	{name: "three sockets", sockets: 3, nodes: 1, caches: 1, cores: 4, threads: 2, sharedCache: true},
	{name: "four sockets with four threads a core", sockets: 4, nodes: 1, caches: 1, cores: 6, threads: 4,
		adjacent: true, sharedCache: true},
	{name: "two sockets with eight threads a core", sockets: 2, nodes: 1, caches: 1, cores: 4, threads: 8, adjacent: true,
		sharedCache: true},
	{name: "two sockets of three nodes", sockets: 2, nodes: 3, caches: 1, cores: 4, threads: 2, sharedCache: true},
	{name: "uncore caches of four cores", sockets: 2, nodes: 1, caches: 4, cores: 4, threads: 2},
	{name: "uncore caches without SMT", sockets: 1, nodes: 1, caches: 6, cores: 8, threads: 1},
	{name: "uncore caches, cores offline", sockets: 1, nodes: 1, caches: 4, cores: 4, threads: 2,
		offline: []int{3, 19, 12, 28}},
	{name: "128 cores in one socket", sockets: 1, nodes: 1, caches: 16, cores: 8, threads: 1},
	{name: "two sockets of four nodes (kubernetes#141237)", sockets: 2, nodes: 4, caches: 2, cores: 4, threads: 2},
	{name: "eight sockets", sockets: 8, nodes: 1, caches: 1, cores: 4, threads: 2, sharedCache: true},
	{name: "two NUMA nodes of two sockets", sockets: 4, perNode: 2, caches: 1, cores: 4, threads: 2, sharedCache: true},
	{name: "one NUMA node of two sockets", sockets: 2, perNode: 2, caches: 1, cores: 4, threads: 2, sharedCache: true},
	{name: "two sockets and two nodes of memory alone", sockets: 2, nodes: 1, caches: 1, cores: 8, threads: 2,
		sharedCache: true, bare: 2},
	{name: "odd number of cores", sockets: 1, nodes: 3, caches: 1, cores: 3, threads: 2},
}

// machine builds the machine.
func (s shape) machine() *topology.Machine {
	type place struct{ socket, node, cache, core, thread int }
	var places []place
	cores := 0
	for socket := range s.sockets {
		nodes := max(s.nodes, 1)
		if s.perNode > 0 {
			nodes = 1
		}
		for node := range nodes {
			id := socket*nodes + node
			if s.perNode > 0 {
				id = socket / s.perNode
			}
			for cache := range s.caches {
				at := (socket*nodes+node)*s.caches + cache
				if s.sharedCache {
					at = socket
				}
				for range s.cores {
					for thread := range s.threads {
						if thread == 0 || !slices.Contains(s.single, cores) {
							places = append(places, place{socket, id, at, cores, thread})
						}
					}
					cores++
				}
			}
		}
	}
	perSocket := cores / s.sockets
	slices.SortStableFunc(places, func(a, b place) int {
		order := func(p place) int {
			core := p.core
			if s.alternate {
				core = p.core%perSocket*s.sockets + p.socket
			}
			if s.adjacent {
				return core*s.threads + p.thread
			}
			return p.thread*cores + core
		}
		return cmp.Compare(order(a), order(b))
	})
	m := &topology.Machine{}
	lowest := map[int]int{}
	nodes := s.bare
	for id, p := range places {
		nodes = max(nodes, p.node+1+s.bare)
		if slices.Contains(s.offline, id) {
			continue
		}
		if _, seen := lowest[p.core]; !seen {
			lowest[p.core] = id
		}
		m.CPUs = append(m.CPUs, topology.CPU{ID: id, Core: lowest[p.core], Socket: p.socket, Node: p.node, Cache: p.cache})
	}
	for id := range nodes {
		n := topology.Node{ID: id, Memory: max(s.memory, 8) << 30, HugePages: map[uint64]uint64{2 << 20: 512 << 20,
			1 << 30: 2 << 30}}
		for other := range nodes {
			switch {
			case other == id:
				n.Distances = append(n.Distances, 10)
			case other/2 == id/2:
				n.Distances = append(n.Distances, 12)
			default:
				n.Distances = append(n.Distances, uint64(20+(other+id)%3*4))
			}
		}
		m.Nodes = append(m.Nodes, n)
	}
	return m
}

// even reports whether all cores have equally many CPUs, and all sockets.
func even(m *topology.Machine) bool {
	for _, of := range []func(topology.CPU) int{
		func(c topology.CPU) int { return c.Core },
		func(c topology.CPU) int { return c.Socket },
	} {
		counts := map[int]int{}
		for _, c := range m.CPUs {
			counts[of(c)]++
		}
		for _, n := range counts {
			if n*len(counts) != len(m.CPUs) {
				return false
			}
		}
	}
	return true
}
