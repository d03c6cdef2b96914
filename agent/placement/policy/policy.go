package policy

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/cpu"
	"github.com/nodelet/nodelet/agent/placement/memory"
	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Policy are the policies of one node. It is never changed.
type Policy struct {
	// CPU and Memory are the static policies; nil for the policy none.
	CPU    *cpu.Policy
	Memory *memory.Policy
	// Topology merges the hints; nil for the policy none.
	Topology *numa.Policy
	// PodScope aligns all containers of a pod together (topologyManagerScope pod), otherwise each one alone.
	PodScope bool
	// PodResources: pods with resources of their own get CPUs and memory as a whole (feature gate
	// PodLevelResourceManagers).
	PodResources bool
}

// State is what all pods have.
type State struct {
	CPU    cpu.State
	Memory memory.State
}

// Clone returns a copy that can be changed.
func (s State) Clone() State { return State{CPU: s.CPU.Clone(), Memory: s.Memory.Clone()} }

// Decision is what a pod gets.
type Decision struct {
	// State is the state with the pod in it. It is the old state if Rejection is set.
	State State
	// Rejection is why the pod may not run; nil if it may. Its Message is the kubelet's.
	Rejection *podstate.Rejection
	// Affinity are the NUMA nodes that the resources of each container should come from. It has no entry for a container
	// that may get them from any.
	Affinity map[string]numa.Mask
	Count    Count
}

// admission is one decision while it is made.
type admission struct {
	*Policy
	pod     *corev1.Pod
	devices *devices
	Decision
	// cpus and memory are what the pod's init containers pass on.
	cpus   cpuset.CPUSet
	memory memory.Reuse
}

// Admit decides about a new pod. It never changes s. devices are those of device plugins that the pod can get; without
// any, it decides about CPUs and memory alone.
func (p *Policy) Admit(pod *corev1.Pod, s State, devices Devices) Decision {
	a := &admission{Policy: p, pod: pod, devices: newDevices(devices), memory: memory.Reuse{}}
	a.State = s.Clone()
	a.Affinity = map[string]numa.Mask{}
	a.Count = newCount()
	p.Release(&a.State, pod.UID) // an earlier run of the agent may have ended before it recorded that it admitted the pod
	if err := a.decide(); err != nil {
		a.State = s
		a.Affinity, a.Rejection = nil, podstate.Rejected(err)
	}
	return a.Decision
}

func (a *admission) decide() error {
	if a.Topology == nil || !a.PodScope {
		return a.containers(a.nearContainer)
	}
	near, ok := a.Topology.Merge(a.podHints()...)
	if !ok {
		a.misaligned(AlignedPodNode)
		return a.unaligned("pod with pod-level resources failed admission under pod-scope topology manager")
	}
	if err := a.whole(near); err != nil {
		return err
	}
	a.aligned(AlignedPodNode)
	return nil
}

// whole gives the pod what it asks for near these nodes.
func (a *admission) whole(near numa.Hint) error {
	same := func(*corev1.Container) (numa.Hint, error) { return near, nil }
	if !a.PodResources || !resourcehelper.IsPodLevelResourcesSet(a.pod) {
		return a.containers(same)
	}
	for role, c := range podutil.ContainersWithResources(&a.pod.Spec) {
		a.near(c, near)
		if err := a.devices.allocate(role, c, near.Nodes); err != nil {
			return err
		}
	}
	if err := a.wholeCPUs(near); err != nil {
		return err
	}
	return a.wholeMemory(near)
}

// wholeCPUs gives the pod the CPUs that it asks for as a whole.
func (a *admission) wholeCPUs(near numa.Hint) error {
	if a.CPU == nil {
		return nil
	}
	got, err := a.CPU.AllocatePod(&a.State.CPU, a.pod, near.Nodes)
	if err != nil {
		a.Count.CPUErrors++
		a.countError(resourceCPU, sourcePod)
		return err
	}
	if !got.IsEmpty() {
		own := func(c *corev1.Container) bool { return a.CPU.Exclusive(a.pod, c) > 0 }
		a.Count.CPUs += a.countParts(resourceCPU, own)
	}
	a.countCPUs(got)
	return nil
}

// wholeMemory gives the pod the memory that it asks for as a whole.
func (a *admission) wholeMemory(near numa.Hint) error {
	if a.Memory == nil {
		return nil
	}
	if err := a.Memory.AllocatePod(&a.State.Memory, a.pod, near); err != nil {
		a.Count.Memory++
		a.Count.MemoryErrors++
		a.countError(resourceMemory, sourcePod)
		return err
	}
	if _, got := a.State.Memory.Pods[string(a.pod.UID)]; got {
		own := func(c *corev1.Container) bool { return a.Memory.Asks(a.pod, c) }
		a.Count.Memory += 1 + a.countParts(resourceMemory, own)
	}
	return nil
}

// containers gives each container what it asks for, near the nodes that near returns.
func (a *admission) containers(near func(*corev1.Container) (numa.Hint, error)) error {
	for role, c := range podutil.ContainersWithResources(&a.pod.Spec) {
		hint, err := near(c)
		if err != nil {
			return err
		}
		a.near(c, hint)
		if err := a.container(role, c, hint); err != nil {
			return err
		}
		if a.Topology != nil && !a.PodScope {
			a.aligned(AlignedNode)
		}
	}
	return nil
}

// nearContainer returns from which nodes a container gets its resources.
func (a *admission) nearContainer(c *corev1.Container) (numa.Hint, error) {
	if a.Topology == nil {
		return numa.Hint{}, nil
	}
	near, ok := a.Topology.Merge(a.hints(c)...)
	if !ok {
		a.misaligned(AlignedNode)
		return near, a.unaligned("pod with pod-level resources failed admission with a container-level topology manager")
	}
	return near, nil
}

func (a *admission) near(c *corev1.Container, hint numa.Hint) {
	if hint.Nodes != 0 {
		a.Affinity[c.Name] = hint.Nodes
	}
}

// container gives one container what it asks for.
func (a *admission) container(role podutil.Role, c *corev1.Container, near numa.Hint) error {
	if err := a.devices.allocate(role, c, near.Nodes); err != nil {
		return err
	}
	if a.CPU != nil && a.CPU.Exclusive(a.pod, c) > 0 {
		a.Count.CPUs++
		got, err := a.CPU.Allocate(&a.State.CPU, a.pod, role, c, near.Nodes, &a.cpus)
		if err != nil {
			a.Count.CPUErrors++
			a.countError(resourceCPU, sourceNode)
			if a.CPU.FullCores() {
				a.Count.Misaligned[AlignedCores]++
			}
			return err
		}
		if a.CPU.FullCores() {
			a.Count.Aligned[AlignedCores]++
		}
		a.countCPUs(got)
		a.countOwn(resourceCPU, 1)
	}
	if a.Memory != nil && a.Memory.Asks(a.pod, c) {
		a.Count.Memory++
		if err := a.Memory.Allocate(&a.State.Memory, a.pod, role, c, near, a.memory); err != nil {
			a.Count.MemoryErrors++
			a.countError(resourceMemory, sourceNode)
			return err
		}
		kinds := len(a.State.Memory.Containers[string(a.pod.UID)][c.Name])
		a.countOwn(resourceMemory, kinds)
	}
	return nil
}

func (a *admission) countCPUs(got cpuset.CPUSet) {
	if !got.IsEmpty() && a.CPU.SameCache(got) {
		a.Count.Aligned[AlignedCache]++
	}
}

// aligned and misaligned count what the policy single-numa-node guarantees; the others guarantee nothing.
func (a *admission) aligned(what Alignment) {
	if a.Topology.Name == numa.PolicySingleNode {
		a.Count.Aligned[what]++
	}
}

func (a *admission) misaligned(what Alignment) {
	if a.Topology.Name == numa.PolicySingleNode {
		a.Count.Misaligned[what]++
	}
}

// unaligned returns the rejection of a pod whose resources cannot come from the same NUMA nodes. podLevel is the end of
// the message for a pod with resources of its own.
func (a *admission) unaligned(podLevel string) error {
	message := "Resources cannot be allocated with Topology locality"
	if a.PodResources && resourcehelper.IsPodLevelResourcesSet(a.pod) {
		message = "Pod Scope " + podLevel
	}
	return &podstate.Rejection{Reason: "TopologyAffinityError", Message: message}
}

// hints returns from which nodes a container can get its devices, CPUs and memory.
func (a *admission) hints(c *corev1.Container) []numa.Hints {
	all := []numa.Hints{a.devices.hints(c)}
	if a.CPU != nil {
		all = append(all, a.CPU.Hints(&a.State.CPU, a.pod, c, a.cpus))
	}
	if a.Memory != nil {
		all = append(all, a.Memory.Hints(&a.State.Memory, a.pod, c, a.memory))
	}
	return all
}

// podHints returns from which nodes the pod can get the devices, CPUs and memory of all its containers.
func (a *admission) podHints() []numa.Hints {
	all := []numa.Hints{a.devices.podHints(a.pod)}
	if a.CPU != nil {
		all = append(all, a.CPU.PodHints(&a.State.CPU, a.pod))
	}
	if a.Memory != nil {
		all = append(all, a.Memory.PodHints(&a.State.Memory, a.pod))
	}
	return all
}

// Asks reports whether a pod asks for CPUs and for memory for itself, which a policy would give to it.
func (p *Policy) Asks(pod *corev1.Pod) (cpus, memory bool) {
	if p.Topology != nil && p.PodScope && p.PodResources && resourcehelper.IsPodLevelResourcesSet(pod) {
		return p.CPU != nil && p.CPU.OfPod(pod) > 0, p.Memory != nil && podutil.QOS(pod) == corev1.PodQOSGuaranteed
	}
	for _, c := range podutil.ContainersWithResources(&pod.Spec) {
		cpus = cpus || p.CPU != nil && p.CPU.Exclusive(pod, c) > 0
		memory = memory || p.Memory != nil && p.Memory.Asks(pod, c)
	}
	return cpus, memory
}

// Start returns the state to begin with: s, or the initial state for parts of s that are the zero value. An error says
// that s does not fit the machine or the configuration.
func (p *Policy) Start(s State) (out State, err error) {
	out = s
	if p.CPU != nil {
		if out.CPU, err = p.CPU.Start(s.CPU); err != nil {
			return s, err
		}
	}
	if p.Memory != nil {
		if out.Memory, err = p.Memory.Start(s.Memory); err != nil {
			return s, err
		}
	}
	return out, nil
}

// Release gives back everything that a pod has.
func (p *Policy) Release(s *State, pod types.UID) {
	s.CPU.Release(pod)
	s.Memory.Release(pod)
}

// Starting gives back the memory of the init containers before the container that starts, and reports whether they had
// any: they have ended, unless it is an ephemeral one.
func (p *Policy) Starting(s *State, pod *corev1.Pod, container string) (released bool) {
	if role, _ := podutil.Container(&pod.Spec, container); role == podutil.RoleEphemeral {
		return false
	}
	for role, c := range podutil.Containers(&pod.Spec) {
		if c.Name == container {
			break
		}
		if role == podutil.RoleInit && s.Memory.ReleaseContainer(pod.UID, c.Name) {
			released = true
		}
	}
	return released
}
