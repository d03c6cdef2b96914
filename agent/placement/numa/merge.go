package numa

import (
	"cmp"
	"math"
)

// Hint says that a request can be served from a set of nodes; the empty set means that any nodes will do. Preferred
// reports whether no smaller set of nodes could serve the request on an empty machine.
type Hint struct {
	Nodes     Mask
	Preferred bool
}

// Hints are the possibilities of one provider by resource. Nil means that a resource has no preference, an empty list
// that it cannot be served at all. A provider without any resource has no preference.
type Hints map[string][]Hint

// Find returns the sets of these nodes for which has reports that they can serve a request, and the size of the
// smallest set for which could reports that it can on an empty machine: sets of that size are preferred. nodes must be
// sorted.
func Find(nodes []int, could, has func(Mask) bool) (hints []Hint, least int) {
	hints, least = []Hint{}, len(nodes)
	for mask := range Subsets(nodes) {
		if could(mask) {
			least = min(least, mask.Count())
		}
		if has(mask) {
			hints = append(hints, Hint{Nodes: mask})
		}
	}
	for i := range hints {
		hints[i].Preferred = hints[i].Nodes.Count() == least
	}
	return hints, least
}

// Names of policies in KubeletConfiguration topologyManagerPolicy. Any other, restricted, admits preferred hints only.
const (
	PolicyNone       = "none"
	PolicyBestEffort = "best-effort"
	PolicySingleNode = "single-numa-node"
)

// Policy merges hints.
type Policy struct {
	// Name is the policy. It must not be PolicyNone, which needs no hints.
	Name string
	// Nodes are all NUMA nodes of the machine.
	Nodes Mask
	// Distance returns the distance between two nodes, by which sets of equal size are compared; nil to prefer low IDs
	// (policy option prefer-closest-numa-nodes).
	Distance func(from, to int) uint64
}

// Merge returns the best set of nodes for all resources of all providers. ok reports whether the policy admits the pod
// with it.
func (p *Policy) Merge(providers ...Hints) (best Hint, ok bool) {
	best = p.choose(p.flatten(providers))
	if p.Name == PolicySingleNode && best.Nodes == p.Nodes {
		best.Nodes = 0
	}
	return best, best.Preferred || p.Name == PolicyBestEffort
}

// flatten returns the hints of each resource. For the policy single-numa-node it keeps preferred hints of one node.
func (p *Policy) flatten(providers []Hints) [][]Hint {
	var all [][]Hint
	for _, hints := range providers {
		if len(hints) == 0 {
			all = append(all, []Hint{{Preferred: true}})
		}
		for _, list := range hints {
			switch {
			case list == nil:
				list = []Hint{{Preferred: true}}
			case len(list) == 0:
				list = []Hint{{}}
			}
			all = append(all, list)
		}
	}
	if p.Name == PolicySingleNode {
		for i := range all {
			all[i] = singleNode(all[i])
		}
	}
	return all
}

func singleNode(hints []Hint) []Hint {
	var kept []Hint
	for _, h := range hints {
		if h.Preferred && h.Nodes.Count() <= 1 {
			kept = append(kept, h)
		}
	}
	return kept
}

// choose combines one hint of each resource with one of every other, in all ways, and returns the best combination.
func (p *Policy) choose(all [][]Hint) Hint {
	wide := widest(all)
	best, found := Hint{Nodes: p.Nodes}, false
	for h := range p.combine(all) {
		if h.Nodes.Count() > 0 && (!found || p.compare(h, best, wide) < 0) {
			best, found = h, true
		}
	}
	return best
}

// combine returns all different combinations of one hint of each resource. A combination is the nodes that its hints
// have in common. It is preferred if all its hints are, and if those with nodes name the same ones.
func (p *Policy) combine(all [][]Hint) map[Hint]bool {
	// While hints are added, the empty set stands for "no hint has named nodes yet"; disjoint is what such sets have in
	// common.
	type partial struct {
		Hint
		disjoint bool
	}
	now := map[partial]bool{{Hint: Hint{Preferred: true}}: true}
	for _, hints := range all {
		next := map[partial]bool{}
		for have := range now {
			for _, h := range hints {
				sum := have
				sum.Preferred = have.Preferred && h.Preferred
				switch {
				case h.Nodes == 0:
				case have.Nodes == 0 && !have.disjoint:
					sum.Nodes = h.Nodes
				default:
					sum.Preferred = sum.Preferred && h.Nodes == have.Nodes
					sum.Nodes &= h.Nodes
					sum.disjoint = sum.Nodes == 0
				}
				next[sum] = true
			}
		}
		now = next
	}
	out := map[Hint]bool{}
	for have := range now {
		switch {
		case have.disjoint:
			have.Nodes = 0
		case have.Nodes == 0:
			have.Nodes = p.Nodes
		}
		have.Nodes &= p.Nodes
		out[have.Hint] = true
	}
	return out
}

// widest returns the number of nodes that the most demanding resource needs at least.
func widest(all [][]Hint) int {
	wide := 0
	for _, hints := range all {
		least := math.MaxInt
		for _, h := range hints {
			if h.Nodes != 0 {
				least = min(least, h.Nodes.Count())
			}
		}
		if least != math.MaxInt {
			wide = max(wide, least)
		}
	}
	return wide
}

// compare orders combinations, the best one first. A preferred one comes first, then the one with fewer nodes. Among
// those that are not preferred, the best has wide nodes, then as many as possible below that, then as few as possible
// above.
func (p *Policy) compare(a, b Hint, wide int) int {
	if a.Preferred != b.Preferred {
		if a.Preferred {
			return -1
		}
		return 1
	}
	if !a.Preferred {
		above := func(h Hint) int { return max(0, h.Nodes.Count()-wide) }
		below := func(h Hint) int { return max(0, wide-h.Nodes.Count()) }
		if c := cmp.Or(cmp.Compare(above(a), above(b)), cmp.Compare(below(a), below(b))); c != 0 {
			return c
		}
	}
	return p.closer(a.Nodes, b.Nodes)
}

// closer orders sets of nodes: fewer nodes first, then nodes that are closer to each other, then those with lower IDs.
func (p *Policy) closer(a, b Mask) int {
	if p.Distance == nil || p.Name == PolicySingleNode || a.Count() != b.Count() {
		return Narrower(a, b)
	}
	return cmp.Or(cmp.Compare(p.average(a), p.average(b)), cmp.Compare(a, b))
}

// average returns the average distance between the nodes of a set.
func (p *Policy) average(m Mask) float64 {
	nodes := m.Nodes()
	sum := 0.0
	for _, from := range nodes {
		for _, to := range nodes {
			sum += float64(p.Distance(from, to))
		}
	}
	return sum / float64(len(nodes)*len(nodes))
}
