package policy_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/cpu"
	"github.com/nodelet/nodelet/agent/placement/memory"
	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/placement/policy"
	"github.com/nodelet/nodelet/host/topology"
)

const gib = 1 << 30

// machine returns two sockets with one NUMA node each, of four cores with two threads each: CPUs 0 to 3 and 8 to 11 are
// those of node 0. Each node has 8 GiB.
func machine() *topology.Machine {
	m := &topology.Machine{}
	for id := range 16 {
		node := id / 4 % 2
		m.CPUs = append(m.CPUs, topology.CPU{ID: id, Core: id % 8, Socket: node, Node: node, Cache: node})
	}
	for id := range 2 {
		m.Nodes = append(m.Nodes, topology.Node{ID: id, Memory: 8 * gib, Distances: []uint64{10, 21}})
	}
	return m
}

// setup returns the policies with CPU 0 and 1 GiB of each node reserved.
func setup(t *testing.T, o cpu.Options, topologyPolicy string) *policy.Policy {
	t.Helper()
	var err error
	p := &policy.Policy{}
	p.CPU, err = cpu.New(cpu.Config{Machine: machine(), Options: o, Reserved: cpuset.New(0)})
	if err != nil {
		t.Fatal(err)
	}
	reserved := memory.Reserved{0: {corev1.ResourceMemory: gib}, 1: {corev1.ResourceMemory: gib}}
	if p.Memory, err = memory.New(machine(), reserved, false); err != nil {
		t.Fatal(err)
	}
	if topologyPolicy != numa.PolicyNone {
		p.Topology = &numa.Policy{Name: topologyPolicy, Nodes: numa.MaskOf(0, 1)}
	}
	return p
}

// pod returns a Guaranteed pod. Each container is written as NAME CPU MEMORY, init containers with a plus before the
// name.
func pod(uid string, containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)}}
	for _, text := range containers {
		f := strings.Fields(text)
		list := corev1.ResourceList{"cpu": resource.MustParse(f[1]), "memory": resource.MustParse(f[2])}
		c := corev1.Container{Name: strings.TrimPrefix(f[0], "+"), Resources: corev1.ResourceRequirements{
			Requests: list,
			Limits:   list.DeepCopy(),
		}}
		if f[0] != c.Name {
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		} else {
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}

// show returns what a container has.
func show(s policy.State, uid types.UID, container string) string {
	set, own := s.CPU.Of(uid, container)
	text := "shared"
	if own {
		text = set.String()
	}
	return fmt.Sprintf("%s of nodes %v", text, s.Memory.Nodes(uid, container).Nodes())
}

// TestAdmit checks that the answers are those of the kubelet: the differential test in test/managers compares many
// more.
func TestAdmit(t *testing.T) {
	for _, c := range []struct {
		name     string
		options  cpu.Options
		topology string
		pods     []*corev1.Pod
		want     []string // of container app of each pod, or the refusal
	}{
		{"pack", cpu.Options{}, "none",
			[]*corev1.Pod{pod("a", "app 2 1Gi"), pod("b", "app 1 1Gi"), pod("c", "app 8 1Gi"), pod("d", "app 1500m 1Gi")},
			[]string{"1,9 of nodes [0]", "8 of nodes [0]", "4-7,12-15 of nodes [0]", "shared of nodes [0]"}},
		{"align", cpu.Options{}, "single-numa-node",
			[]*corev1.Pod{pod("a", "app 6 1Gi"), pod("b", "app 6 1Gi"), pod("c", "app 4 1Gi")},
			[]string{"1-3,9-11 of nodes [0]", "4-6,12-14 of nodes [1]",
				"TopologyAffinityError: Resources cannot be allocated with Topology locality"}},
		{"memory decides the node", cpu.Options{}, "single-numa-node",
			[]*corev1.Pod{pod("a", "app 1 6Gi"), pod("b", "app 2 6Gi")},
			[]string{"8 of nodes [0]", "4,12 of nodes [1]"}},
		{"restricted", cpu.Options{}, "restricted",
			[]*corev1.Pod{pod("a", "app 10 1Gi"), pod("b", "app 2 10Gi")},
			[]string{"TopologyAffinityError: Resources cannot be allocated with Topology locality",
				"TopologyAffinityError: Resources cannot be allocated with Topology locality"}},
		{"whole cores", cpu.Options{FullCores: true}, "none",
			[]*corev1.Pod{pod("a", "app 2 1Gi"), pod("b", "app 1 1Gi"), pod("c", "app 14 1Gi")},
			[]string{"1,9 of nodes [0]",
				"SMTAlignmentError: SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2",
				"SMTAlignmentError: SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 12, " +
					"requested CPUs = 14, CPUs per core = 2"}},
		{"spread over cores", cpu.Options{SpreadCores: true}, "none",
			[]*corev1.Pod{pod("a", "app 3 1Gi")}, []string{"1-3 of nodes [0]"}},
		{"spread over nodes", cpu.Options{SpreadNodes: true}, "none",
			[]*corev1.Pod{pod("a", "app 10 1Gi")}, []string{"1-2,4-6,8-10,12-13 of nodes [0]"}},
		{"init containers pass on", cpu.Options{}, "none",
			[]*corev1.Pod{pod("a", "+first 6 2Gi", "app 4 1Gi"), pod("b", "app 16 1Gi")},
			[]string{"1-2,9-10 of nodes [0]", "UnexpectedAdmissionError: Allocate failed due to not enough cpus available to " +
				"satisfy request: requested=16, available=9, which is unexpected"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := setup(t, c.options, c.topology)
			s, err := p.Start(policy.State{})
			if err != nil {
				t.Fatal(err)
			}
			for i, pod := range c.pods {
				d := p.Admit(pod, s, nil)
				got := ""
				if d.Rejection != nil {
					got = d.Rejection.Reason + ": " + d.Rejection.Message
				} else {
					got = show(d.State, pod.UID, "app")
					checkAsks(t, p, pod, d.State)
				}
				if got != c.want[i] {
					t.Errorf("pod %s: got %s, want %s", pod.Name, got, c.want[i])
				}
				s = d.State
			}
			for _, pod := range c.pods {
				p.Release(&s, pod.UID)
			}
			if again, err := p.Start(s); err != nil || !again.CPU.Shared.Equals(machineCPUs()) {
				t.Errorf("after all pods have gone: got shared pool %s, %v", again.CPU.Shared, err)
			}
		})
	}
}

// checkAsks checks that a pod that has been admitted asks for what it got.
func checkAsks(t *testing.T, p *policy.Policy, pod *corev1.Pod, s policy.State) {
	t.Helper()
	_, hasCPUs := s.CPU.Containers[pod.UID]
	_, hasMemory := s.Memory.Containers[string(pod.UID)]
	if cpus, memory := p.Asks(pod); cpus != hasCPUs || memory != hasMemory {
		t.Errorf("pod %s asks: got %t for CPUs, %t for memory, want %t, %t", pod.Name, cpus, memory, hasCPUs, hasMemory)
	}
}

func machineCPUs() cpuset.CPUSet {
	m := machine()
	return m.Online()
}

// TestDevicesDecideTheNode checks that devices pull CPUs to their NUMA node.
func TestDevicesDecideTheNode(t *testing.T) {
	p := setup(t, cpu.Options{}, numa.PolicySingleNode)
	s, err := p.Start(policy.State{})
	if err != nil {
		t.Fatal(err)
	}
	wants := pod("a", "app 2 1Gi")
	wants.Spec.Containers[0].Resources.Limits["example.com/gpu"] = resource.MustParse("1")
	gpus := policy.Devices{"example.com/gpu": {
		All:  map[string]numa.Mask{"g0": numa.MaskOf(0), "g1": numa.MaskOf(1)},
		Free: []string{"g1"},
	}}
	d := p.Admit(wants, s, gpus)
	if d.Rejection != nil || d.Affinity["app"] != numa.MaskOf(1) || show(d.State, "a", "app") != "4,12 of nodes [1]" {
		t.Errorf("got %v, affinity %v, %s", d.Rejection, d.Affinity, show(d.State, "a", "app"))
	}
	wants.Spec.Containers[0].Resources.Limits["example.com/gpu"] = resource.MustParse("2")
	gpus["example.com/gpu"] = policy.Resource{All: gpus["example.com/gpu"].All, Free: []string{"g0", "g1"}}
	if d := p.Admit(wants, s, gpus); d.Rejection == nil || d.Rejection.Reason != "TopologyAffinityError" {
		t.Errorf("devices of two nodes: got %v, want TopologyAffinityError", d.Rejection)
	}
}

// TestUnevenCores checks that a core with a reserved CPU is never given away as a whole, whatever the average core
// has.
func TestUnevenCores(t *testing.T) {
	m := &topology.Machine{Nodes: []topology.Node{{}}, CPUs: []topology.CPU{{ID: 0}, {ID: 1}, {ID: 2, Core: 2},
		{ID: 3, Core: 3}, {ID: 4, Core: 4}}}
	p, err := cpu.New(cpu.Config{Machine: m, Reserved: cpuset.New(0)})
	if err != nil {
		t.Fatal(err)
	}
	all := &policy.Policy{CPU: p}
	s, err := all.Start(policy.State{})
	if err != nil {
		t.Fatal(err)
	}
	d := all.Admit(pod("a", "app 4 1Gi"), s, nil)
	if got, want := show(d.State, "a", "app"), "1-4 of nodes []"; d.Rejection != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, d.Rejection, want)
	}
}

// TestStartRefuses checks that a state that does not fit the machine or the configuration is not used.
func TestStartRefuses(t *testing.T) {
	p := setup(t, cpu.Options{}, numa.PolicyNone)
	fresh, err := p.Start(policy.State{})
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*policy.State){
		"not all reserved cpus":            func(s *policy.State) { s.CPU.Shared = cpuset.New(3) },
		"doesn't match with CPUs in state": func(s *policy.State) { s.CPU.Shared = cpuset.New(0, 1) },
		"overlaps with default cpuset": func(s *policy.State) {
			s.CPU.Containers["u"] = map[string]cpuset.CPUSet{"c": cpuset.New(1)}
		},
		"expected machine state is different from the real": func(s *policy.State) {
			s.Memory.Machine[0].NumberOfAssignments = 1
		},
	} {
		s := fresh.Clone()
		change(&s)
		if _, err := p.Start(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// TestMemoryAfterBoot checks that a state is used although a NUMA node has a little more or less memory than before, as
// long as that is enough for what a container has of one node or of both.
func TestMemoryAfterBoot(t *testing.T) {
	p := setup(t, cpu.Options{}, numa.PolicyNone)
	fresh, err := p.Start(policy.State{})
	if err != nil {
		t.Fatal(err)
	}
	for _, has := range []string{"app 1 5Gi", "app 1 9Gi"} {
		s := p.Admit(pod("a", has), fresh, nil).State
		for change, fits := range map[int64]bool{0: true, 1 << 16: true, -1 << 16: true, gib: true, -3 * gib: false} {
			t.Run(fmt.Sprintf("%s/%d", has, change), func(t *testing.T) {
				m := machine()
				for i := range m.Nodes {
					m.Nodes[i].Memory = uint64(int64(m.Nodes[i].Memory) + change)
				}
				next := *p
				reserved := memory.Reserved{0: {corev1.ResourceMemory: gib}, 1: {corev1.ResourceMemory: gib}}
				if next.Memory, err = memory.New(m, reserved, false); err != nil {
					t.Fatal(err)
				}
				got, err := next.Start(s)
				if (err == nil) != fits {
					t.Fatalf("got %v, want a state that fits: %v", err, fits)
				}
				if !fits {
					return
				}
				if show(got, "a", "app") != show(s, "a", "app") {
					t.Errorf("got %s, want %s", show(got, "a", "app"), show(s, "a", "app"))
				}
				for id, n := range got.Memory.Machine {
					of := n.MemoryMap[corev1.ResourceMemory]
					if of.TotalMemSize != m.Nodes[id].Memory || of.Free+of.Reserved != of.Allocatable {
						t.Errorf("node %d: got %+v, want %d bytes", id, *of, m.Nodes[id].Memory)
					}
				}
				next.Release(&got, "a")
				if again, err := next.Start(got); err != nil || again.Memory.Machine[0].NumberOfAssignments != 0 {
					t.Errorf("after the end of the pod: got %+v, %v, want nothing assigned", again.Memory.Machine[0], err)
				}
			})
		}
	}
}

// TestStarting checks that when an app container starts, the memory of the init containers is free. An ephemeral
// container may start beside them.
func TestStarting(t *testing.T) {
	p := setup(t, cpu.Options{}, numa.PolicyNone)
	s, err := p.Start(policy.State{})
	if err != nil {
		t.Fatal(err)
	}
	one := pod("a", "+first 1 3Gi", "app 1 1Gi")
	d := p.Admit(one, s, nil)
	one.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}},
	}
	if p.Starting(&d.State, one, "debug") {
		t.Error("an ephemeral container: got memory released, want none")
	}
	if got, want := d.State.Memory.Machine[0].MemoryMap["memory"].Reserved, uint64(3*gib); got != want {
		t.Errorf("reserved before: got %d, want %d", got, want)
	}
	if !p.Starting(&d.State, one, "app") || p.Starting(&d.State, one, "app") {
		t.Error("want memory released once")
	}
	if got, want := d.State.Memory.Machine[0].MemoryMap["memory"].Reserved, uint64(gib); got != want {
		t.Errorf("reserved after: got %d, want %d", got, want)
	}
}
