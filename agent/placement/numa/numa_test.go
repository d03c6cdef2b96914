package numa_test

import (
	"slices"
	"testing"

	"github.com/nodelet/nodelet/agent/placement/numa"
)

func TestSubsets(t *testing.T) {
	var got []numa.Mask
	for m := range numa.Subsets([]int{0, 1, 3}) {
		got = append(got, m)
	}
	want := []numa.Mask{1, 2, 8, 3, 9, 10, 11}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMask(t *testing.T) {
	m := numa.MaskOf(0, 5, 63, 64, -1)
	if got, want := m.Nodes(), []int{0, 5, 63}; !slices.Equal(got, want) || m.Count() != 3 {
		t.Errorf("got %v, want %v", got, want)
	}
	if !m.Has(63) || m.Has(1) || m.Has(-1) {
		t.Errorf("got the nodes %v, want 63 among them, 1 and -1 not", m.Nodes())
	}
	if numa.Narrower(numa.MaskOf(7), numa.MaskOf(0, 1)) >= 0 || numa.Narrower(numa.MaskOf(0), numa.MaskOf(1)) >= 0 {
		t.Error("got another order, want the set with fewer nodes, or with lower ones, first")
	}
}

func TestMerge(t *testing.T) {
	one, two := numa.MaskOf(0), numa.MaskOf(1)
	both := numa.MaskOf(0, 1)
	cpus := numa.Hints{"cpu": {{Nodes: one, Preferred: true}, {Nodes: two, Preferred: true}, {Nodes: both}}}
	onlySecond := numa.Hints{"gpu": {{Nodes: two, Preferred: true}, {Nodes: both}}}
	onlyBoth := numa.Hints{"memory": {{Nodes: both, Preferred: true}}}
	never, anywhere := numa.Hints{"gpu": {}}, numa.Hints{"gpu": nil}
	for _, c := range []struct {
		name, policy string
		hints        []numa.Hints
		want         numa.Hint
		ok           bool
	}{
		{"no preference", "restricted", []numa.Hints{nil, anywhere}, numa.Hint{Nodes: both, Preferred: true}, true},
		{"no preference on one node", "single-numa-node", []numa.Hints{nil}, numa.Hint{Preferred: true}, true},
		{"the lowest node", "single-numa-node", []numa.Hints{cpus, nil}, numa.Hint{Nodes: one, Preferred: true}, true},
		{"the node of the device", "restricted", []numa.Hints{cpus, onlySecond},
			numa.Hint{Nodes: two, Preferred: true}, true},
		{"no common node", "restricted", []numa.Hints{cpus, onlyBoth}, numa.Hint{Nodes: both}, false},
		{"no common node, best effort", "best-effort", []numa.Hints{cpus, onlyBoth}, numa.Hint{Nodes: both}, true},
		{"several nodes", "restricted", []numa.Hints{onlyBoth}, numa.Hint{Nodes: both, Preferred: true}, true},
		{"several nodes instead of one", "single-numa-node", []numa.Hints{onlyBoth}, numa.Hint{}, false},
		{"impossible", "restricted", []numa.Hints{cpus, never}, numa.Hint{Nodes: one}, false},
	} {
		p := numa.Policy{Name: c.policy, Nodes: both}
		if got, ok := p.Merge(c.hints...); got != c.want || ok != c.ok {
			t.Errorf("%s: got %v, %v, want %v, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestMergeClosest(t *testing.T) {
	hints := numa.Hints{"cpu": {{Nodes: numa.MaskOf(0, 1), Preferred: true}, {Nodes: numa.MaskOf(0, 2), Preferred: true}}}
	p := numa.Policy{Name: numa.PolicyBestEffort, Nodes: numa.MaskOf(0, 1, 2)}
	if got, _ := p.Merge(hints); got.Nodes != numa.MaskOf(0, 1) {
		t.Errorf("by number: got %v, want nodes 0 and 1", got.Nodes.Nodes())
	}
	p.Distance = func(from, to int) uint64 {
		if from+to == 2 {
			return 11
		}
		return 30
	}
	if got, _ := p.Merge(hints); got.Nodes != numa.MaskOf(0, 2) {
		t.Errorf("by distance: got %v, want nodes 0 and 2", got.Nodes.Nodes())
	}
}
