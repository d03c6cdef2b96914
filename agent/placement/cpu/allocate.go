package cpu

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// reasonAlignment is the kubelet's reason for a pod that cannot get whole cores.
const reasonAlignment = "SMTAlignmentError"

// wholeCores returns an error unless n CPUs can be whole cores. Cores with a reserved CPU do not count.
func (p *Policy) wholeCores(s *State, n int) error {
	if !p.options.FullCores {
		return nil
	}
	if n%p.perCore() != 0 {
		return &podstate.Rejection{Reason: reasonAlignment, Message: fmt.Sprintf(
			"SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", n, p.perCore())}
	}
	if available := s.Shared.Difference(p.reservedCores).Size(); n > available {
		return &podstate.Rejection{Reason: reasonAlignment, Message: fmt.Sprintf(
			"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, "+
				"CPUs per core = %d", available, n, p.perCore())}
	}
	return nil
}

// Allocate gives a container that has no CPUs of its own those that it asks for, and returns them. near are the NUMA
// nodes that they should belong to. reuse are the CPUs that earlier init containers of the pod pass on; Allocate
// keeps it up to date.
func (p *Policy) Allocate(s *State, pod *corev1.Pod, role podutil.Role, c *corev1.Container, near numa.Mask,
	reuse *cpuset.CPUSet) (cpuset.CPUSet, error) {
	n := p.Exclusive(pod, c)
	if n == 0 {
		return cpuset.New(), nil
	}
	if err := p.wholeCores(s, n); err != nil {
		return cpuset.New(), err
	}
	got, err := p.chooseNear(p.Free(s).Union(*reuse), n, near)
	if err != nil {
		return cpuset.New(), err
	}
	s.Shared = s.Shared.Difference(got)
	s.set(pod.UID, c.Name, got)
	passOn(reuse, role, got)
	return got, nil
}

// passOn updates the CPUs that later containers of a pod may use: an init container ends before they start.
func passOn(reuse *cpuset.CPUSet, role podutil.Role, cpus cpuset.CPUSet) {
	if role == podutil.RoleInit {
		*reuse = reuse.Union(cpus)
	} else {
		*reuse = reuse.Difference(cpus)
	}
}

// AllocatePod gives a pod with resources of its own CPUs as a whole, and divides them among its containers. It returns
// the CPUs that it has given.
func (p *Policy) AllocatePod(s *State, pod *corev1.Pod, near numa.Mask) (cpuset.CPUSet, error) {
	n := p.OfPod(pod)
	if n == 0 {
		return cpuset.New(), nil
	}
	if err := p.leavesShared(pod); err != nil {
		return cpuset.New(), err
	}
	if err := p.wholeCores(s, n); err != nil {
		return cpuset.New(), err
	}
	all, err := p.chooseNear(p.Free(s), n, near)
	if err != nil {
		return cpuset.New(), err
	}
	parts, err := p.divide(pod, all)
	if err != nil {
		return cpuset.New(), err
	}
	s.Shared = s.Shared.Difference(all)
	s.Pods[pod.UID] = all
	for name, set := range parts {
		s.set(pod.UID, name, set)
	}
	return all, nil
}

// divide divides the CPUs of a pod. Containers without CPUs of their own share what is left: an init container what
// sidecars before it leave, the others what all sidecars and app containers leave.
func (p *Policy) divide(pod *corev1.Pod, all cpuset.CPUSet) (map[string]cpuset.CPUSet, error) {
	parts := map[string]cpuset.CPUSet{}
	var sharing []string
	left := all // what sidecars, and then app containers, leave
	for role, c := range podutil.ContainersWithResources(&pod.Spec) {
		n := p.Exclusive(pod, c)
		switch {
		case n == 0 && role == podutil.RoleInit:
			parts[c.Name] = left
			continue
		case n == 0:
			sharing = append(sharing, c.Name)
			continue
		}
		set, err := p.choose(left, n)
		if err != nil {
			return nil, err
		}
		parts[c.Name] = set
		if role != podutil.RoleInit {
			left = left.Difference(set)
		}
	}
	for _, name := range sharing {
		parts[name] = left
	}
	return parts, nil
}

// leavesShared returns an error if the containers with CPUs of their own leave none to those that share.
func (p *Policy) leavesShared(pod *corev1.Pod) error {
	total := p.OfPod(pod)
	running, sharing := 0, false
	for role, c := range podutil.ContainersWithResources(&pod.Spec) {
		n := p.Exclusive(pod, c)
		switch {
		case role == podutil.RoleInit && n == 0 && running >= total:
			return numa.EmptyPool("pod rejected, pod has shared init containers but no cpus available for them")
		case role == podutil.RoleInit:
		case n == 0:
			sharing = true
		default:
			running += n
		}
	}
	if sharing && running >= total {
		return numa.EmptyPool("pod rejected, sum of exclusive container cpu requests equals pod budget, " +
			"leaving no cpus for shared containers")
	}
	return nil
}
