package podstate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// PodGrows reports whether the pod's cgroup must grow to size before anything in it may. While a change of
// its size is in flight, or has failed, it may be as small as that would make it.
func (s *State) PodGrows() (size Size, grows bool) {
	pod, known := s.Memory.PodSize()
	if s.Grant == nil || !known {
		return Size{}, false
	}
	wider := pod.Wider(s.Grant.Pod)
	return wider, wider != pod.Normal() || s.podSizeUnsettled() && s.ContainersChange()
}

// podSizeUnsettled reports whether the outcome of the last change of the pod's size is unknown.
func (s *State) podSizeUnsettled() bool {
	_, failed := s.Memory.Failure(ResizePod{})
	return failed || s.Memory.InFlight(ResizePod{}) != nil
}

// PodSizeDiffers reports whether the pod's cgroup is known to have another size than granted.
func (s *State) PodSizeDiffers() bool {
	pod, known := s.Memory.PodSize()
	return known && pod.Normal() != s.Grant.Pod.Normal()
}

// ContainersChange reports whether a running container has other resources than granted.
func (s *State) ContainersChange() bool {
	return slices.ContainsFunc(s.Slots, func(slot *Slot) bool { return slot.ResizeRestarts() || slot.ResizesInPlace() })
}

// Resizing reports whether something that runs does not have the resources that were granted.
func (s *State) Resizing() bool {
	return s.Grant != nil && (s.PodSizeDiffers() || s.ContainersChange())
}

// granted is what a running instance may use; false where nothing is known or nothing is to be changed.
func (s *Slot) granted() (ContainerGrant, bool) {
	if s.state.Grant == nil || s.Role == podutil.RoleEphemeral || !s.Running() {
		return ContainerGrant{}, false
	}
	g, ok := s.state.Grant.Containers[s.Spec.Name]
	return g, ok
}

// actual are the resources that an instance was created with or last resized to; nil where that is not known.
func (s *Slot) actual() *corev1.ResourceRequirements {
	if r, ok := s.memory.Resized(s.Last.ID); ok {
		return &r
	}
	return s.Last.Made
}

// ResizeRestarts reports whether the container's resize policy asks for another instance for what has changed.
func (s *Slot) ResizeRestarts() bool {
	g, ok := s.granted()
	if !ok {
		return false
	}
	has := s.actual()
	return has != nil && slices.ContainsFunc(s.Spec.ResizePolicy, func(policy corev1.ContainerResizePolicy) bool {
		return policy.RestartPolicy == corev1.RestartContainer &&
			!podutil.SameResources(*has, g.Resources, policy.ResourceName)
	})
}

// ResizesInPlace reports whether a running instance has other resources than granted and can be given them as it is.
func (s *Slot) ResizesInPlace() bool {
	g, ok := s.granted()
	if !ok || s.ResizeRestarts() {
		return false
	}
	if has := s.actual(); has != nil && !podutil.SameResources(*has, g.Resources) {
		return true
	}
	// What has been set once is not set again, should the runtime report it in other numbers.
	_, set := s.memory.Resized(s.Last.ID)
	return !set && s.Last.Size != nil && s.Last.Size.Normal() != g.Size.Normal()
}

// ShownResources are the resources that the status shows of an instance: what was granted, or, until it has
// that, what it had. Nil where an earlier run of the agent has resized it and it is not known to what.
func (s *Slot) ShownResources() *corev1.ResourceRequirements {
	if !s.ResizeRestarts() && !s.ResizesInPlace() {
		return &s.Spec.Resources
	}
	if s.Shown != nil && s.Shown.Resources != nil && podutil.RuntimeID(s.Shown.ContainerID) == s.Last.ID {
		return s.Shown.Resources
	}
	g, _ := s.granted()
	if has := s.actual(); has != nil && !podutil.SameResources(*has, g.Resources) {
		return has
	}
	return nil
}
