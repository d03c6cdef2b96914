package policy_test

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/cpu"
	"github.com/nodelet/nodelet/agent/placement/memory"
	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/placement/policy"
)

// TestShares checks how the decisions about pods with resources of their own are counted: the figures are those of the
// kubelet, with which test/managers compares many more.
func TestShares(t *testing.T) {
	type shares = map[policy.Share]int
	whole := pod("a", "+first 1 1Gi", "own 2 1Gi", "shared 500m 1Gi")
	whole.Spec.Resources = resources("4", "4Gi")
	whole.Spec.Containers[1].Resources = corev1.ResourceRequirements{}
	full := pod("a", "own 2 2Gi", "shared 1 1Gi")
	full.Spec.Resources = resources("2", "2Gi")
	full.Spec.Containers[1].Resources = corev1.ResourceRequirements{}
	huge := pod("a", "app 1 1Gi", "fraction 500m 1Gi")
	huge.Spec.Containers[0].Resources.Requests["hugepages-2Mi"] = resource.MustParse("0")
	for _, c := range []struct {
		name                             string
		gate, podScope                   bool
		pod                              *corev1.Pod
		allocations, errors, assignments shares
	}{
		{"a pod as a whole", true, true, whole,
			shares{{"cpu", "pod"}: 3, {"memory", "pod"}: 3}, shares{},
			shares{{"cpu", "pod_exclusive"}: 2, {"cpu", "pod_shared"}: 1, {"memory", "pod_exclusive"}: 2,
				{"memory", "pod_shared"}: 1}},
		{"each container", true, false, whole,
			shares{{"cpu", "node"}: 2, {"memory", "node"}: 2}, shares{},
			shares{{"cpu", "node_exclusive"}: 2, {"memory", "node_exclusive"}: 2}},
		{"nothing left to share", true, true, full,
			shares{}, shares{{"cpu", "pod"}: 1}, shares{}},
		{"not enough CPUs", true, false, pod("a", "app 16 1Gi"),
			shares{}, shares{{"cpu", "node"}: 1}, shares{}},
		{"fractions of CPUs", true, true, pod("a", "app 1500m 1Gi"),
			shares{{"memory", "node"}: 1}, shares{}, shares{{"memory", "node_exclusive"}: 1}},
		{"two kinds of memory", true, false, huge,
			shares{{"cpu", "node"}: 1, {"memory", "node"}: 3}, shares{},
			shares{{"cpu", "node_exclusive"}: 1, {"memory", "node_exclusive"}: 2}},
		{"the feature gate is off", false, false, pod("a", "app 2 1Gi"), shares{}, shares{}, shares{}},
		{"the feature gate is off, not enough CPUs", false, false, pod("a", "app 16 1Gi"), shares{}, shares{}, shares{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &policy.Policy{PodScope: c.podScope, PodResources: c.gate}
			p.Topology = &numa.Policy{Name: numa.PolicyBestEffort, Nodes: numa.MaskOf(0, 1)}
			var err error
			if p.CPU, err = cpu.New(cpu.Config{Machine: machine(), Reserved: cpuset.New(0), PodResources: c.gate}); err != nil {
				t.Fatal(err)
			}
			m := machine()
			for i := range m.Nodes {
				m.Nodes[i].HugePages = map[uint64]uint64{2 << 20: gib}
			}
			reserved := memory.Reserved{0: {corev1.ResourceMemory: gib}}
			if p.Memory, err = memory.New(m, reserved, c.gate); err != nil {
				t.Fatal(err)
			}
			s, err := p.Start(policy.State{})
			if err != nil {
				t.Fatal(err)
			}
			d := p.Admit(c.pod, s, nil)
			if d.Rejection == nil {
				checkAsks(t, p, c.pod, d.State)
			}
			got := d.Count
			if !maps.Equal(got.Allocations, c.allocations) || !maps.Equal(got.AllocationErrors, c.errors) ||
				!maps.Equal(got.Assignments, c.assignments) {
				t.Errorf("got allocations %v, errors %v, assignments %v, want %v, %v, %v", got.Allocations,
					got.AllocationErrors, got.Assignments, c.allocations, c.errors, c.assignments)
			}
		})
	}
}

func resources(cpus, memory string) *corev1.ResourceRequirements {
	list := corev1.ResourceList{"cpu": resource.MustParse(cpus), "memory": resource.MustParse(memory)}
	return &corev1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
}
