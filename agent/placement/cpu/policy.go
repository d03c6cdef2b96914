package cpu

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/host/topology"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Config is what a Policy needs.
type Config struct {
	Machine *topology.Machine
	Options Options
	// Reserved are the CPUs of KubeletConfiguration reservedSystemCPUs; if there are none, Policy chooses ReservedCount
	// CPUs: kubeReserved and systemReserved together, rounded up.
	Reserved      cpuset.CPUSet
	ReservedCount int
	// PodResources: pods with resources of their own get CPUs as a whole (feature gate PodLevelResourceManagers).
	PodResources bool
	// SingleNode: the topology manager policy is single-numa-node, which AlignSocket contradicts.
	SingleNode bool
}

// Policy is the static policy on one machine. It is never changed.
type Policy struct {
	layout
	options      Options
	podResources bool
	// reserved are never exclusive. reservedCores are all CPUs of cores with a reserved CPU.
	reserved, reservedCores cpuset.CPUSet
}

// New returns the policy, or an error if the configuration does not fit the machine.
func New(c Config) (*Policy, error) {
	p := &Policy{layout: *newLayout(c.Machine), options: c.Options, podResources: c.PodResources, reserved: c.Reserved}
	if c.Options.AlignSocket && c.SingleNode {
		return nil, fmt.Errorf("topology manager policy %s is incompatible with the CPU manager option %s",
			numa.PolicySingleNode, alignSocket)
	}
	if c.Options.AlignSocket && p.sockets > p.nodes {
		return nil, fmt.Errorf("the CPU manager option %s is not compatible with a machine that has more sockets than "+
			"NUMA nodes", alignSocket)
	}
	if c.ReservedCount < 1 && c.Reserved.IsEmpty() {
		return nil, errors.New("the static CPU manager policy requires kubeReserved.cpu + systemReserved.cpu to be greater " +
			"than zero, or reservedSystemCPUs")
	}
	if c.Reserved.IsEmpty() {
		p.reserved, _ = p.choose(p.all, c.ReservedCount)
		if p.reserved.Size() != c.ReservedCount {
			return nil, fmt.Errorf("unable to reserve the required amount of CPUs (size of %s did not equal %d)",
				p.reserved, c.ReservedCount)
		}
	}
	if missing := p.reserved.Difference(p.all); !missing.IsEmpty() {
		return nil, fmt.Errorf("reserved CPUs %s are not online; online are %s", missing, p.all)
	}
	for _, c := range p.pool(p.reserved) {
		p.reservedCores = p.reservedCores.Union(p.in(core, c.Core))
	}
	return p, nil
}

// Allocatable returns the CPUs that containers can have for themselves.
func (p *Policy) Allocatable() cpuset.CPUSet { return p.all.Difference(p.reserved) }

// Free returns the CPUs that a container can still get for itself.
func (p *Policy) Free(s *State) cpuset.CPUSet { return s.Shared.Difference(p.reserved) }

// known returns the CPUs that the shared pool and all containers have together.
func (p *Policy) known() cpuset.CPUSet {
	if p.options.StrictReservation {
		return p.Allocatable()
	}
	return p.all
}

// Start returns the state to begin with: s, or the initial state if s is the zero value. An error says that s does not
// fit the machine or the configuration.
func (p *Policy) Start(s State) (State, error) {
	switch {
	case !s.Shared.IsEmpty():
	case len(s.Containers) == 0:
		return State{Shared: p.known()}.Clone(), nil
	case !p.options.StrictReservation: // with it, containers can have all CPUs that are not reserved
		return s, errors.New("default cpuset cannot be empty")
	}
	switch present := p.reserved.Intersection(s.Shared); {
	case p.options.StrictReservation && !present.IsEmpty():
		return s, fmt.Errorf("some of strictly reserved cpus: %q are present in defaultCpuSet: %q", present, s.Shared)
	case !p.options.StrictReservation && !present.Equals(p.reserved):
		return s, fmt.Errorf("not all reserved cpus: %q are present in defaultCpuSet: %q", p.reserved, s.Shared)
	}
	for uid, of := range s.Containers {
		for name, set := range of {
			if !s.Shared.Intersection(set).IsEmpty() {
				return s, fmt.Errorf("pod: %s, container: %s cpuset: %q overlaps with default cpuset %q", uid, name, set, s.Shared)
			}
		}
	}
	all := s.Shared.Union(s.Exclusive())
	if p.podResources {
		for _, set := range s.Pods {
			all = all.Union(set)
		}
	}
	if want := p.known(); !all.Equals(want) {
		return s, fmt.Errorf("current set of available CPUs %q doesn't match with CPUs in state %q", want, all)
	}
	return s.Clone(), nil
}

// choose returns n of the available CPUs as the options say.
func (p *Policy) choose(available cpuset.CPUSet, n int) (cpuset.CPUSet, error) {
	if !p.options.SpreadNodes {
		return p.take(available, n, p.options.SpreadCores, p.options.AlignCache)
	}
	group := 1
	if p.options.FullCores {
		group = p.perCore()
	}
	return p.takeSpread(available, n, group, p.options.SpreadCores, p.options.AlignSocket)
}

// chooseNear returns n of the available CPUs: first those of the given NUMA nodes, then any.
func (p *Policy) chooseNear(available cpuset.CPUSet, n int, near numa.Mask) (cpuset.CPUSet, error) {
	taken := cpuset.New()
	if near != 0 {
		aligned := p.near(available, near)
		var err error
		if taken, err = p.choose(aligned, min(n, aligned.Size())); err != nil {
			return taken, err
		}
	}
	rest, err := p.choose(available.Difference(taken), n-taken.Size())
	return taken.Union(rest), err
}

// near returns the CPUs of a set that belong to the nodes, or to their sockets with the option AlignSocket.
func (p *Policy) near(set cpuset.CPUSet, nodes numa.Mask) cpuset.CPUSet {
	of, ids := node, nodes.Nodes()
	if p.options.AlignSocket {
		of, ids = socket, p.socketsOf(nodes.Has)
	}
	out := cpuset.New()
	for _, id := range ids {
		out = out.Union(p.in(of, id))
	}
	return out.Intersection(set)
}

// SameCache reports whether the CPUs share one uncore cache.
func (p *Policy) SameCache(set cpuset.CPUSet) bool { return len(p.pool(set).parts(cache, nil)) <= 1 }

// PerNode returns how many of the CPUs each NUMA node has.
func (p *Policy) PerNode(set cpuset.CPUSet) map[int]int {
	out := map[int]int{}
	for _, c := range p.pool(set) {
		out[c.Node]++
	}
	return out
}

// Exclusive returns how many CPUs a container gets for itself.
func (p *Policy) Exclusive(pod *corev1.Pod, c *corev1.Container) int {
	return podutil.ExclusiveCPUs(pod, c, p.podResources)
}

// OfPod returns how many CPUs the containers of a pod need at a time for themselves.
func (p *Policy) OfPod(pod *corev1.Pod) int {
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		if !p.podResources || podutil.QOS(pod) != corev1.PodQOSGuaranteed {
			return 0
		}
		return podutil.WholeCPUs(pod.Spec.Resources.Requests)
	}
	var init, sidecars, apps int
	for role, c := range podutil.Containers(&pod.Spec) {
		n := p.Exclusive(pod, c)
		switch role {
		case podutil.RoleInit:
			init = max(init, sidecars+n)
		case podutil.RoleSidecar:
			sidecars += n
		case podutil.RoleApp:
			apps += n
		}
	}
	return max(init, sidecars+apps)
}

// FullCores reports whether containers get whole physical cores only.
func (p *Policy) FullCores() bool { return p.options.FullCores }
