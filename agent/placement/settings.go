package placement

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/cpu"
	"github.com/nodelet/nodelet/agent/placement/memory"
	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/placement/policy"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/host/topology"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// gatePodResources lets pods with resources of their own have CPUs and memory as a whole.
const gatePodResources = "PodLevelResourceManagers"

// Settings are the fields of the KubeletConfiguration that the policies need.
type Settings struct {
	CPUPolicy       string // none or static
	CPUOptions      map[string]string
	ReconcilePeriod time.Duration
	ReservedCPUs    cpuset.CPUSet       // reservedSystemCPUs
	MemoryPolicy    string              // None or Static
	ReservedMemory  []config.NUMAMemory // which containers do not get
	TopologyPolicy  string
	TopologyScope   string
	TopologyOptions map[string]string
	// Gate reports whether a feature gate is on.
	Gate func(string) bool
}

// SettingsOf returns the settings of a configuration.
func SettingsOf(c *config.Config) Settings {
	k := &c.Kubelet
	return Settings{
		CPUPolicy:       k.CPUManagerPolicy,
		CPUOptions:      k.CPUManagerPolicyOptions,
		ReconcilePeriod: k.CPUManagerReconcilePeriod.Duration,
		ReservedCPUs:    c.Reserved().CPUs,
		MemoryPolicy:    k.MemoryManagerPolicy,
		ReservedMemory:  k.ReservedMemory,
		TopologyPolicy:  k.TopologyManagerPolicy,
		TopologyScope:   k.TopologyManagerScope,
		TopologyOptions: k.TopologyManagerPolicyOptions,
		Gate:            c.Gate,
	}
}

// off reports whether no policy does anything.
func (s *Settings) off() bool {
	return s.CPUPolicy != config.CPUPolicyStatic && s.MemoryPolicy != config.MemoryPolicyStatic &&
		s.TopologyPolicy == numa.PolicyNone
}

// build returns the policies on a machine. reservation is what Node Allocatable keeps from pods.
func (s *Settings) build(m *topology.Machine, reservation corev1.ResourceList) (*policy.Policy, error) {
	p := &policy.Policy{PodScope: s.TopologyScope == "pod", PodResources: s.Gate(gatePodResources)}
	var err error
	if s.TopologyPolicy != numa.PolicyNone {
		if p.Topology, err = s.topology(m); err != nil {
			return nil, err
		}
	}
	if s.CPUPolicy == config.CPUPolicyStatic {
		if p.CPU, err = s.cpus(m, reservation); err != nil {
			return nil, err
		}
	}
	if s.MemoryPolicy == config.MemoryPolicyStatic {
		if p.Memory, err = s.memory(m, reservation); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (s *Settings) cpus(m *topology.Machine, reservation corev1.ResourceList) (*cpu.Policy, error) {
	options, err := cpu.ParseOptions(s.CPUOptions, s.Gate)
	if err != nil {
		return nil, fmt.Errorf("cpuManagerPolicyOptions: %w", err)
	}
	return cpu.New(cpu.Config{
		Machine:       m,
		Options:       options,
		Reserved:      s.ReservedCPUs,
		ReservedCount: int(math.Ceil(float64(reservation.Cpu().MilliValue()) / 1000)),
		PodResources:  s.Gate(gatePodResources),
		SingleNode:    s.TopologyPolicy == numa.PolicySingleNode,
	})
}

// memory returns the memory policy. What reservedMemory reserves on all nodes together has to be what Node Allocatable
// reserves.
func (s *Settings) memory(m *topology.Machine, reservation corev1.ResourceList) (*memory.Policy, error) {
	reserved, sums := memory.Reserved{}, corev1.ResourceList{}
	for _, r := range s.ReservedMemory {
		node := int(r.NumaNode)
		if reserved[node] == nil {
			reserved[node] = map[corev1.ResourceName]uint64{}
		}
		for kind, q := range r.Limits {
			reserved[node][kind] = uint64(q.Value())
			sum := sums[kind]
			sum.Add(q)
			sums[kind] = sum
		}
	}
	kinds := map[corev1.ResourceName]bool{corev1.ResourceMemory: true}
	for _, list := range []corev1.ResourceList{sums, reservation} {
		for kind := range list {
			if podutil.IsHugePages(kind) {
				kinds[kind] = true
			}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		got, want := sums[kind], reservation[kind]
		if got.Cmp(want) != 0 {
			return nil, fmt.Errorf("reservedMemory: the total amount %q of type %q is not equal to the value %q determined by "+
				"Node Allocatable feature (kubeReserved, systemReserved and evictionHard together)", text(got), kind, text(want))
		}
	}
	return memory.New(m, reserved, s.Gate(gatePodResources))
}

func text(q resource.Quantity) string { return q.String() }

// Options of the topology manager.
const (
	optionClosest  = "prefer-closest-numa-nodes"
	optionMaxNodes = "max-allowable-numa-nodes"
	// defaultMaxNodes is how many NUMA nodes a machine may have without optionMaxNodes. The hints of a pod grow
	// exponentially with the nodes.
	defaultMaxNodes = 8
)

func (s *Settings) topology(m *topology.Machine) (*numa.Policy, error) {
	p := &numa.Policy{Name: s.TopologyPolicy, Nodes: numa.MaskOf(m.NodeIDs()...)}
	maxNodes := defaultMaxNodes
	for _, name := range slices.Sorted(maps.Keys(s.TopologyOptions)) {
		value := s.TopologyOptions[name]
		switch name {
		case optionClosest:
			closest, err := strconv.ParseBool(value)
			if err != nil {
				return nil, fmt.Errorf("topologyManagerPolicyOptions: bad value for option %q: %w", name, err)
			}
			if closest {
				p.Distance = m.Distance
			}
		case optionMaxNodes:
			n, err := strconv.Atoi(value)
			if err != nil || n < defaultMaxNodes {
				return nil, fmt.Errorf("topologyManagerPolicyOptions: %s: %q is not a number of at least %d", name, value,
					defaultMaxNodes)
			}
			maxNodes = n
		default:
			return nil, fmt.Errorf("topologyManagerPolicyOptions: unknown Topology Manager Policy option: %q", name)
		}
	}
	if len(m.Nodes) > maxNodes {
		return nil, fmt.Errorf("topologyManagerPolicy: unsupported on machines with more than %d NUMA Nodes, this one has %d",
			maxNodes, len(m.Nodes))
	}
	for _, n := range m.Nodes {
		if n.ID > numa.MaxID {
			return nil, fmt.Errorf("topologyManagerPolicy: NUMA node %d: numbers above %d are not supported", n.ID, numa.MaxID)
		}
		if p.Distance != nil && n.Distances == nil {
			return nil, errors.New("topologyManagerPolicyOptions: " + optionClosest + " needs the distances between NUMA " +
				"nodes, which the kernel does not report")
		}
	}
	return p, nil
}
