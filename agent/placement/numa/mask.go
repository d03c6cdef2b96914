package numa

import (
	"cmp"
	"iter"
	"math/bits"
)

// MaxID is the largest ID of a NUMA node that a Mask can hold.
const MaxID = 63

// Mask is a set of NUMA nodes. The empty mask stands for no preference.
type Mask uint64

// MaskOf returns the set of these nodes. IDs outside of 0 to MaxID are left out.
func MaskOf(nodes ...int) Mask {
	var m Mask
	for _, n := range nodes {
		if n >= 0 && n <= MaxID {
			m |= 1 << n
		}
	}
	return m
}

// Has reports whether the set contains a node.
func (m Mask) Has(node int) bool { return node >= 0 && node <= MaxID && m&(1<<node) != 0 }

// Count returns the number of nodes.
func (m Mask) Count() int { return bits.OnesCount64(uint64(m)) }

// Nodes returns the nodes in ascending order.
func (m Mask) Nodes() []int {
	out := make([]int, 0, m.Count())
	for rest := uint64(m); rest != 0; rest &= rest - 1 {
		out = append(out, bits.TrailingZeros64(rest))
	}
	return out
}

// Narrower compares two sets: the one with fewer nodes comes first, then the one whose nodes have the lower IDs.
func Narrower(a, b Mask) int { return cmp.Or(cmp.Compare(a.Count(), b.Count()), cmp.Compare(a, b)) }

// Subsets yields all non-empty sets of the nodes, smaller ones first. nodes must be sorted.
func Subsets(nodes []int) iter.Seq[Mask] {
	return func(yield func(Mask) bool) {
		for size := 1; size <= len(nodes); size++ {
			if !subsets(nodes, size, 0, yield) {
				return
			}
		}
	}
}

// subsets yields each set of size nodes, together with those in have. It reports whether to go on.
func subsets(nodes []int, size int, have Mask, yield func(Mask) bool) bool {
	if size == 0 {
		return yield(have)
	}
	for i := range nodes {
		if len(nodes)-i < size {
			return true
		}
		if !subsets(nodes[i+1:], size-1, have|MaskOf(nodes[i]), yield) {
			return false
		}
	}
	return true
}
