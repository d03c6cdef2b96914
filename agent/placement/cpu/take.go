package cpu

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/host/topology"
)

// taking is how CPUs are taken out of the free ones, from the largest parts of the machine that fit down to single
// CPUs. On each level, the parts with the fewest free CPUs come first, so that large parts stay free.
type taking struct {
	*layout
	free   pool
	need   int
	taken  cpuset.CPUSet
	spread bool
}

// errTooFew is the error for a request that cannot be served from the free CPUs.
func errTooFew(n, available int) error {
	return fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", n, available)
}

// take returns n of the available CPUs. spread takes CPUs of different cores, align those that share an uncore cache.
func (l *layout) take(available cpuset.CPUSet, n int, spread, align bool) (cpuset.CPUSet, error) {
	t := &taking{layout: l, free: l.pool(available), need: n, spread: spread}
	if n > len(t.free) {
		return cpuset.New(), errTooFew(n, available.Size())
	}
	first, second := t.wholeSockets, t.wholeNodes
	if l.nodesAbove() {
		first, second = second, first
	}
	steps := []func(){first, second}
	if align {
		steps = append(steps, t.fromCaches)
	}
	if !spread {
		steps = append(steps, t.wholeCores)
	}
	for _, step := range append(steps, t.single) {
		if t.need < 1 {
			break
		}
		step()
	}
	if t.need > 0 {
		return cpuset.New(), errors.New("failed to allocate cpus")
	}
	return t.taken, nil
}

// nodesAbove reports whether NUMA nodes consist of sockets, and not the other way round.
func (l *layout) nodesAbove() bool { return l.sockets >= l.nodes }

func (t *taking) take(set cpuset.CPUSet) {
	t.taken = t.taken.Union(set)
	t.free = slices.DeleteFunc(slices.Clone(t.free), func(c *topology.CPU) bool { return set.Contains(c.ID) })
	t.need -= set.Size()
}

// whole takes parts of the machine that are free and no larger than what is needed. With size, only parts of this size
// count.
func (t *taking) whole(of level, ids []int, size int) {
	ids = slices.DeleteFunc(ids, func(id int) bool {
		free := t.free.count(of, id)
		return free != t.in(of, id).Size() || size > 0 && free != size
	})
	for _, id := range ids {
		if all := t.in(of, id); t.need >= all.Size() {
			t.take(all)
		}
	}
}

func (t *taking) wholeNodes()  { t.whole(node, t.nodeOrder(), 0) }
func (t *taking) wholeCaches() { t.whole(cache, t.cacheOrder(), 0) }

// On an uneven machine, the kubelet regards only sockets and cores of the average size as whole. (It also takes the
// whole core if as many CPUs are free as the average core has, although another container may have the others; see
// https://github.com/kubernetes/kubernetes/issues/140495. Nodelet does not.)

func (t *taking) wholeSockets() { t.whole(socket, t.socketOrder(), t.perSocket()) }
func (t *taking) wholeCores()   { t.whole(core, t.coreOrder(), t.perCore()) }

// single takes single CPUs.
func (t *taking) single() {
	of, order := core, t.coreOrder
	if t.spread {
		of, order = socket, t.socketOrder
	}
	for _, id := range order() {
		for _, c := range t.free.keep(of, id) {
			if t.need < 1 {
				return
			}
			t.take(cpuset.New(c.ID))
		}
	}
}

// The orders return the parts of the machine with free CPUs. Parts of one larger part stay together.

func (t *taking) nodeOrder() []int {
	if t.nodesAbove() {
		return t.free.parts(node, nil)
	}
	return t.nested(socket, t.free.parts(socket, nil), node)
}

func (t *taking) socketOrder() []int {
	if !t.nodesAbove() {
		return t.free.parts(socket, nil)
	}
	return t.nested(node, t.nodeOrder(), socket)
}

func (t *taking) coreOrder() []int {
	if t.nodesAbove() {
		return t.nested(socket, t.socketOrder(), core)
	}
	return t.nested(node, t.nodeOrder(), core)
}

func (t *taking) cacheOrder() []int { return t.nested(node, t.nodeOrder(), cache) }

// nested returns the parts on the level inner of each of the parts ids on the level outer.
func (t *taking) nested(outer level, ids []int, inner level) []int {
	var out []int
	for _, id := range ids {
		for _, part := range t.free.parts(inner, t.free.keep(outer, id)) {
			if !slices.Contains(out, part) { // a socket may belong to several NUMA nodes
				out = append(out, part)
			}
		}
	}
	return out
}

// fromCaches takes whole uncore caches, and the rest from one cache if that has enough.
func (t *taking) fromCaches() {
	for _, id := range t.cacheOrder() {
		if t.need >= t.perCache() {
			t.wholeCaches()
		}
		if t.need < 1 {
			return
		}
		t.fromCache(id)
		if t.need < 1 {
			return
		}
	}
}

// fromCache takes everything that is still needed from the first cores of one cache, if their free CPUs are as many.
func (t *taking) fromCache(id int) {
	inside := t.free.keep(cache, id)
	ids := inside.parts(core, nil)
	slices.Sort(ids)
	cores := (t.need + t.perCore() - 1) / t.perCore()
	ids = ids[:min(len(ids), cores)]
	found := slices.DeleteFunc(slices.Clone(t.free), func(c *topology.CPU) bool { return !slices.Contains(ids, c.Core) })
	if t.need%2 != 0 && t.perCore() > 1 && len(found) > t.need {
		found = found[:len(found)-1] // one CPU of the last core is enough
	}
	if len(found) == t.need {
		t.take(found.set())
	}
}
