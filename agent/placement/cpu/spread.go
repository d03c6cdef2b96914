package cpu

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"k8s.io/utils/cpuset"
)

// takeSpread returns n of the available CPUs: of one NUMA node if that has enough, else equally many of each of as few
// nodes as possible (KEP-2902). CPUs are taken in groups of size group, such as the CPUs of one core. If no such
// distribution exists, CPUs are taken as by take. oneSocket prefers nodes of one socket.
func (l *layout) takeSpread(available cpuset.CPUSet, n, group int, spread, oneSocket bool) (cpuset.CPUSet, error) {
	if n%group != 0 {
		return l.take(available, n, spread, false)
	}
	if n < 1 {
		return cpuset.New(), nil
	}
	t := &taking{layout: l, free: l.pool(available), need: n, spread: spread}
	if n > len(t.free) {
		return cpuset.New(), errTooFew(n, available.Size())
	}
	s := &spreading{taking: t, n: n, group: group, oneSocket: oneSocket, order: t.nodeOrder(), free: map[int]int{}}
	for _, id := range s.order {
		s.free[id] = t.free.count(node, id)
	}
	least, most := s.bounds()
	for k := least; k <= most; k++ {
		if best := s.best(k); best.nodes != nil {
			return s.apply(best)
		}
	}
	return l.take(available, n, spread, false)
}

// spreading is the search for NUMA nodes from which n CPUs are taken in groups.
type spreading struct {
	*taking
	n, group  int
	oneSocket bool
	// order are the nodes with free CPUs, free is how many each has.
	order []int
	free  map[int]int
}

// distribution is one way to take CPUs: each of the nodes gives an equal share, and those in rest give one more group
// each in turn until nothing is left to take.
type distribution struct {
	nodes, rest []int
	// balance is the standard deviation of the free CPUs of all nodes afterwards; less is better.
	balance float64
	// inSocket reports whether the nodes belong to one socket. It is only set with oneSocket.
	inSocket bool
}

// bounds returns the least and the largest number of NUMA nodes that can serve the request.
func (s *spreading) bounds() (least, most int) {
	up := func(a, b int) int { return (a + b - 1) / b }
	groups := up(s.n, s.group)
	perNode := up(up(len(s.cpus), s.group), s.nodes)
	return up(groups, perNode), min(groups, len(s.order))
}

// share returns how many CPUs each of the nodes gives at least.
func (s *spreading) share(nodes []int) int {
	share := s.n / len(nodes) / s.group * s.group
	if s.oneSocket {
		for _, id := range nodes {
			share = min(share, s.groups(s.free[id]))
		}
	}
	return share
}

// groups rounds down to whole groups.
func (s *spreading) groups(cpus int) int { return cpus / s.group * s.group }

// best returns the best distribution over k nodes; without nodes if there is none.
func (s *spreading) best(k int) distribution {
	best := distribution{balance: math.MaxFloat64}
	combinations(s.order, k, func(nodes []int) bool {
		if best.balance == 0 && (!s.oneSocket || best.inSocket) {
			return false
		}
		one, ok := s.over(nodes)
		better := one.balance < best.balance
		if s.oneSocket && one.inSocket != best.inSocket {
			better = one.inSocket
		}
		if ok && better {
			best = one
		}
		return true
	})
	return best
}

// over returns the best distribution over these nodes. ok reports whether they have enough CPUs.
func (s *spreading) over(nodes []int) (d distribution, ok bool) {
	sum := 0
	share := s.share(nodes)
	for _, id := range nodes {
		sum += s.free[id] / s.group
		if s.free[id] < share {
			return d, false
		}
	}
	if sum*s.group < s.n {
		return d, false
	}
	left := maps.Clone(s.free)
	for _, id := range nodes {
		left[id] -= share
	}
	among := func(id int) bool { return slices.Contains(nodes, id) }
	d = distribution{nodes: nodes, balance: math.MaxFloat64, inSocket: s.oneSocket && len(s.socketsOf(among)) <= 1}
	remainder := s.n - share*len(nodes)
	if remainder == 0 {
		d.balance = deviation(left)
		return d, true
	}
	var able []int
	for _, id := range nodes {
		if left[id] >= s.group {
			able = append(able, id)
		}
	}
	for k := len(able); k >= 1; k-- {
		combinations(able, k, func(rest []int) bool {
			if b, ok := s.remainder(left, rest, remainder); ok && b < d.balance {
				d.balance, d.rest = b, rest
			}
			return true
		})
	}
	return d, true
}

// remainder returns the balance after the remaining CPUs have been taken from the nodes in rest. ok reports whether
// these have enough.
func (s *spreading) remainder(left map[int]int, rest []int, n int) (balance float64, ok bool) {
	after, enough := maps.Clone(left), 0
	for _, id := range rest {
		enough += s.groups(after[id])
	}
	if enough < n {
		return 0, false
	}
	for n > 0 {
		for _, id := range rest {
			if n > 0 && after[id] >= s.group {
				after[id] -= s.group
				n -= s.group
			}
		}
	}
	return deviation(after), true
}

// apply takes the CPUs.
func (s *spreading) apply(d distribution) (cpuset.CPUSet, error) {
	share := s.share(d.nodes)
	from := func(id, n int) error {
		set, err := s.layout.take(s.taking.free.keep(node, id).set(), n, s.spread, false)
		if err != nil {
			return err
		}
		s.take(set)
		return nil
	}
	for _, id := range d.nodes {
		if err := from(id, share); err != nil {
			return cpuset.New(), err
		}
	}
	for s.need > 0 {
		before := s.need
		for _, id := range d.rest {
			if s.need > 0 && s.taking.free.count(node, id) >= s.group {
				if err := from(id, s.group); err != nil {
					return cpuset.New(), err
				}
			}
		}
		if s.need == before {
			return cpuset.New(), fmt.Errorf("accounting error, not enough CPUs allocated, remaining: %v", s.need)
		}
	}
	return s.taken, nil
}

// combinations calls f with each combination of k of the numbers, in order, until f returns false. f may keep it.
func combinations(of []int, k int, f func([]int) bool) {
	var rec func(start int, have []int) bool
	rec = func(start int, have []int) bool {
		if len(have) == k {
			return f(slices.Clone(have))
		}
		for i := start; i <= len(of)-(k-len(have)); i++ {
			if !rec(i+1, append(have, of[i])) {
				return false
			}
		}
		return true
	}
	if k > 0 {
		rec(0, make([]int, 0, k))
	}
}

// deviation returns the standard deviation of the values, rounded to three decimals as the kubelet does, so that both
// agents see the same distributions as equal.
func deviation(values map[int]int) float64 {
	round := func(f float64) float64 { return math.Round(f*1000) / 1000 }
	sum := 0
	for _, v := range values {
		sum += v
	}
	mean := round(float64(sum) / float64(len(values)))
	squares := 0.0
	for _, v := range values {
		squares += (float64(v) - mean) * (float64(v) - mean)
	}
	return round(math.Sqrt(squares / float64(len(values))))
}
