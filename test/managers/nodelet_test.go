package managers

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/cpu"
	"github.com/nodelet/nodelet/agent/placement/memory"
	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/placement/policy"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/host/topology"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// settings are the configuration of both sides.
type settings struct {
	cpu             bool
	cpuOptions      map[string]string
	count           int
	reserved        cpuset.CPUSet
	memory          bool
	reservedMemory  memory.Reserved
	topology, scope string
	topologyOptions map[string]string
	podResources    bool
}

// reservedCount returns how many CPUs are reserved.
func (s *settings) reservedCount() int {
	if !s.reserved.IsEmpty() {
		return s.reserved.Size()
	}
	return s.count
}

// nodelet is nodelet's side.
type nodelet struct {
	policy policy.Policy
	state  policy.State
	// count is what the last pod has added to the counters.
	count policy.Count
}

// newNodelet returns nodelet's side, or the error with which it would not start.
func newNodelet(m *topology.Machine, s settings) (*nodelet, error) {
	n := &nodelet{policy: policy.Policy{PodScope: s.scope == "pod", PodResources: s.podResources}}
	var err error
	if s.cpu {
		options, err := cpu.ParseOptions(s.cpuOptions, func(string) bool { return true })
		if err != nil {
			return nil, err
		}
		n.policy.CPU, err = cpu.New(cpu.Config{
			Machine:       m,
			Options:       options,
			Reserved:      s.reserved,
			ReservedCount: s.reservedCount(),
			PodResources:  s.podResources,
			SingleNode:    s.topology == numa.PolicySingleNode,
		})
		if err != nil {
			return nil, err
		}
	}
	if s.memory {
		if n.policy.Memory, err = memory.New(m, s.reservedMemory, s.podResources); err != nil {
			return nil, err
		}
	}
	if s.topology != numa.PolicyNone {
		n.policy.Topology = &numa.Policy{Name: s.topology, Nodes: numa.MaskOf(m.NodeIDs()...)}
		if near, _ := strconv.ParseBool(s.topologyOptions["prefer-closest-numa-nodes"]); near {
			n.policy.Topology.Distance = m.Distance
		}
	}
	n.state, err = n.policy.Start(policy.State{})
	return n, err
}

func (n *nodelet) admit(pod *corev1.Pod, devices policy.Devices) *podstate.Rejection {
	d := n.policy.Admit(pod, n.state, devices)
	n.state, n.count = d.State, d.Count
	return d.Rejection
}

func (n *nodelet) started(pod *corev1.Pod, name string) { n.policy.Starting(&n.state, pod, name) }

func (n *nodelet) remove(pod *corev1.Pod) { n.policy.Release(&n.state, pod.UID) }

// describe returns what nodelet's side has of a pod, as kubelet.describe does.
func (n *nodelet) describe(pod *corev1.Pod) string {
	text := ""
	for role, c := range podutil.Containers(&pod.Spec) {
		if role == podutil.RoleEphemeral {
			continue
		}
		if n.policy.CPU != nil {
			set, ok := n.state.CPU.Containers[pod.UID][c.Name]
			text += fmt.Sprintf("%s cpus %s %v; ", c.Name, set, ok)
		}
		if n.policy.Memory != nil {
			blocks := slices.Clone(n.state.Memory.Containers[string(pod.UID)][c.Name])
			slices.SortFunc(blocks, func(a, b memory.Block) int { return compareText(a.Type, b.Type) })
			text += fmt.Sprintf("%s memory %v; ", c.Name, blocks)
		}
	}
	return text
}

// describeAll returns the rest of the state as text, as kubelet.describeAll does.
func (n *nodelet) describeAll() string {
	text := ""
	if n.policy.CPU != nil {
		text += "shared " + n.state.CPU.Shared.String()
	}
	if n.policy.Memory != nil {
		machine := n.state.Memory.Machine
		for _, id := range sortedKeys(machine) {
			text += fmt.Sprintf("; node %d: %d %v", id, machine[id].NumberOfAssignments, machine[id].Cells)
			for _, kind := range sortedKeys(machine[id].MemoryMap) {
				text += fmt.Sprintf(" %s %v", kind, *machine[id].MemoryMap[kind])
			}
		}
	}
	return text
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func compareText[T ~string](a, b T) int { return cmp.Compare(a, b) }
