package podstate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// PodGrows reports whether the pod's cgroup must grow to size before the containers in it may grow. While a change of
// its size is in flight, the cgroup may already have the size that the change sets.
func (s *State) PodGrows() (size Size, grows bool) {
	pod, known := s.Memory.PodSize()
	if s.Allocation == nil || !known {
		return Size{}, false
	}
	wider := pod.Wider(s.Allocation.Pod)
	return wider, wider != pod.Normal() || s.Memory.InFlight(ResizePod{}.Key()) != nil
}

// AwaitsPodSize reports whether new instances wait until the pod's cgroup has grown for them. They do not if that has
// failed: it may fail for good, for example because the runtime refuses it, and a container that has ended must start
// again all the same.
func (s *State) AwaitsPodSize() bool {
	size, grows := s.PodGrows()
	f, failed := s.Memory.Failure(ResizePod{}.Key())
	return grows && !(failed && f.Holds(ResizePod{To: size}))
}

// PodSizeDiffers reports whether the pod's cgroup has a size other than the allocated one. After a change of its size
// has failed it may have one.
func (s *State) PodSizeDiffers() bool {
	pod, known := s.Memory.PodSize()
	if !known {
		_, failed := s.Memory.Failure(ResizePod{}.Key())
		return failed
	}
	return pod.Normal() != s.Allocation.Pod.Normal()
}

// ContainersChange reports whether the resources of a running container differ from the allocated ones.
func (s *State) ContainersChange() bool {
	return slices.ContainsFunc(s.Slots, func(slot *Slot) bool { return slot.ResizeRestarts() || slot.ResizesInPlace() })
}

// Resizing reports whether a resize is in progress: the pod's cgroup or a running container does not have its allocated
// resources.
func (s *State) Resizing() bool {
	return s.Allocation != nil && (s.PodSizeDiffers() || s.ContainersChange())
}

// allocated returns the resources allocated to a running instance; false if they are not known or the instance is not
// to be resized.
func (s *Slot) allocated() (ContainerAllocation, bool) {
	if s.state.Allocation == nil || s.Role == podutil.RoleEphemeral || !s.Running() {
		return ContainerAllocation{}, false
	}
	g, ok := s.state.Allocation.Containers[s.Spec.Name]
	return g, ok
}

// madeWith returns the resources with which an instance was created; nil if they are not known. The kubelet does not
// record them, so its instances have what was allocated to them before their first resize.
func (a *Allocation) madeWith(c *Container) *corev1.ResourceRequirements {
	if before, known := a.Before[c.ID]; known && c.Made == nil {
		return &before
	}
	return c.Made
}

// remade reports whether the next instance gets other resources than the newest one was created with.
func (s *Slot) remade() bool {
	if s.state.Allocation == nil {
		return false
	}
	g, known := s.state.Allocation.Containers[s.Spec.Name]
	made := s.state.Allocation.madeWith(s.Last)
	return known && made != nil && !podutil.SameResources(*made, g.Resources)
}

// actual returns the resources that an instance was created with or last resized to; nil if they are not known. If an
// earlier run of the agent has resized it, the status shows that.
func (s *Slot) actual(g ContainerAllocation) *corev1.ResourceRequirements {
	if r := s.state.Memory.Instance(s.Last.ID).Resized; r != nil {
		return r
	}
	if s.shownWith(g) {
		return &g.Resources
	}
	return s.state.Allocation.madeWith(s.Last)
}

// shownWith reports whether the status shows that the newest instance has the allocated resources. It does not show
// limits that are the pod's; the runtime does.
func (s *Slot) shownWith(g ContainerAllocation) bool {
	st := s.Reported
	if !shows(st, s.Last.ID) || st.Resources == nil {
		return false
	}
	return podutil.SameResources(*st.Resources, g.Resources) ||
		podutil.SameResources(*st.Resources, s.Spec.Resources) &&
			s.Last.Size != nil && s.Last.Size.Normal() == g.Size.Normal()
}

// ResizeRestarts reports whether the container must restart to get its new resources, by its resize policy.
func (s *Slot) ResizeRestarts() bool {
	g, ok := s.allocated()
	if !ok {
		return false
	}
	has := s.actual(g)
	return has != nil && slices.ContainsFunc(s.Spec.ResizePolicy, func(policy corev1.ContainerResizePolicy) bool {
		return policy.RestartPolicy == corev1.RestartContainer &&
			!podutil.SameResources(*has, g.Resources, policy.ResourceName)
	})
}

// ResizesInPlace reports whether the resources of a running instance differ from the allocated ones and can change
// without a restart.
func (s *Slot) ResizesInPlace() bool {
	g, ok := s.allocated()
	if !ok || s.ResizeRestarts() {
		return false
	}
	if has := s.actual(g); has != nil && !podutil.SameResources(*has, g.Resources) {
		return true
	}
	if r, changes := s.state.Memory.InFlight(Resize{ID: s.Last.ID}.Key()).(Resize); changes && r.To != g.Size {
		return true // it may have had its effect already
	}
	return s.sizeCounts() && s.Last.Size.Normal() != g.Size.Normal()
}

// sizeCounts reports whether the numbers of the runtime decide if an instance is resized. They do only if an earlier
// agent has resized it, as its record or the status shows, or may have done so: the runtime may round numbers, and its
// plugins may have chosen others on purpose.
func (s *Slot) sizeCounts() bool {
	if s.state.Memory.Instance(s.Last.ID).Resized != nil || s.Last.Size == nil {
		return false
	}
	_, resized := s.state.Allocation.Before[s.Last.ID]
	return resized || !s.shownDone() && (s.Last.Made == nil || s.shownOther())
}

// shownOther reports whether the status shows the newest instance with other resources than the spec has.
func (s *Slot) shownOther() bool {
	st := s.Reported
	return shows(st, s.Last.ID) && st.Resources != nil && !podutil.SameResources(*st.Resources, s.Spec.Resources)
}

// shownDone reports whether the status shows the newest instance with the pod's newest spec and no resize in progress.
func (s *Slot) shownDone() bool {
	pod := s.state.Pod
	return shows(s.Reported, s.Last.ID) && pod.Status.ObservedGeneration >= pod.Generation &&
		podutil.Condition(pod.Status.Conditions, corev1.PodResizeInProgress) == nil
}

// ReportedResources returns the resources of an instance for the status: the allocated ones or, until the instance has
// them, those that it had before. It is nil if an earlier run of the agent has resized the instance and its resources
// are not known.
func (s *Slot) ReportedResources() *corev1.ResourceRequirements {
	if !s.ResizeRestarts() && !s.ResizesInPlace() {
		return &s.Spec.Resources
	}
	if st := s.Reported; shows(st, s.Last.ID) && st.Resources != nil {
		return st.Resources
	}
	g, _ := s.allocated()
	if has := s.actual(g); has != nil && !podutil.SameResources(*has, g.Resources) {
		return has
	}
	return nil
}
