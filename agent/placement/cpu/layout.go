package cpu

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/host/topology"
)

// level is one level of the machine: it says to which part on that level a CPU belongs.
type level func(*topology.CPU) int

func node(c *topology.CPU) int   { return c.Node }
func socket(c *topology.CPU) int { return c.Socket }
func cache(c *topology.CPU) int  { return c.Cache }
func core(c *topology.CPU) int   { return c.Core }

// layout is the machine with counts that the policy needs again and again.
type layout struct {
	cpus []topology.CPU // sorted by ID
	byID map[int]*topology.CPU
	all  cpuset.CPUSet
	// nodes, sockets, caches and cores are how many the machine has.
	nodes, sockets, caches, cores int
	// nodeIDs are the NUMA nodes with CPUs, sorted.
	nodeIDs []int
}

func newLayout(m *topology.Machine) *layout {
	l := &layout{cpus: m.CPUs, byID: make(map[int]*topology.CPU, len(m.CPUs)), all: m.Online()}
	for i := range l.cpus {
		l.byID[l.cpus[i].ID] = &l.cpus[i]
	}
	whole := l.pool(l.all)
	l.nodeIDs = whole.parts(node, nil)
	slices.Sort(l.nodeIDs)
	l.nodes, l.sockets = len(l.nodeIDs), len(whole.parts(socket, nil))
	l.caches, l.cores = len(whole.parts(cache, nil)), len(whole.parts(core, nil))
	return l
}

// perCore, perSocket and perCache are averages, rounded down: on an uneven machine the kubelet counts with them too.
func (l *layout) perCore() int   { return len(l.cpus) / l.cores }
func (l *layout) perSocket() int { return len(l.cpus) / l.sockets }
func (l *layout) perCache() int  { return len(l.cpus) / l.caches }

// in returns all CPUs of one part of the machine.
func (l *layout) in(of level, id int) cpuset.CPUSet {
	var ids []int
	for i := range l.cpus {
		if of(&l.cpus[i]) == id {
			ids = append(ids, l.cpus[i].ID)
		}
	}
	return cpuset.New(ids...)
}

// socketsOf returns the sockets of the NUMA nodes that has accepts.
func (l *layout) socketsOf(has func(node int) bool) []int {
	var inside pool
	for i := range l.cpus {
		if has(l.cpus[i].Node) {
			inside = append(inside, &l.cpus[i])
		}
	}
	return inside.parts(socket, nil)
}

// pool is a part of the machine's CPUs, for example those that are free.
type pool []*topology.CPU

// pool returns the CPUs of a set, sorted by ID.
func (l *layout) pool(set cpuset.CPUSet) pool {
	p := make(pool, 0, set.Size())
	for i := range l.cpus {
		if set.Contains(l.cpus[i].ID) {
			p = append(p, &l.cpus[i])
		}
	}
	return p
}

// count returns how many CPUs of the pool are in a part of the machine.
func (p pool) count(of level, id int) int {
	n := 0
	for _, c := range p {
		if of(c) == id {
			n++
		}
	}
	return n
}

// keep returns the CPUs of the pool that are in a part of the machine.
func (p pool) keep(of level, id int) pool {
	var out pool
	for _, c := range p {
		if of(c) == id {
			out = append(out, c)
		}
	}
	return out
}

func (p pool) set() cpuset.CPUSet {
	ids := make([]int, len(p))
	for i, c := range p {
		ids[i] = c.ID
	}
	return cpuset.New(ids...)
}

// parts returns the parts of the machine on a level that have CPUs in the pool, those with the fewest first, then by
// ID. With within, which is a part of the pool, it returns those that have CPUs in it; the CPUs of the whole pool
// count.
func (p pool) parts(of level, within pool) []int {
	if within == nil {
		within = p
	}
	counts := map[int]int{}
	for _, c := range within {
		counts[of(c)] = 0
	}
	for _, c := range p {
		if _, wanted := counts[of(c)]; wanted {
			counts[of(c)]++
		}
	}
	return slices.SortedFunc(maps.Keys(counts), func(a, b int) int {
		return cmp.Or(cmp.Compare(counts[a], counts[b]), cmp.Compare(a, b))
	})
}
