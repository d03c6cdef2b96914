package podstate

import "slices"

// hasPostStart reports whether the container has a postStart hook.
func (s *Slot) hasPostStart() bool {
	return s.Spec.Lifecycle != nil && s.Spec.Lifecycle.PostStart != nil
}

// HookDue reports whether the postStart hook of the newest instance has not succeeded. Of one that an earlier run of
// the agent has started, that is known if the API shows it as waiting.
func (s *Slot) HookDue() bool {
	m := s.state.Memory.Instance(s.Last.ID)
	return s.hasPostStart() && m.Started && (!m.Hook.Ended || m.Hook.Failure != "")
}

// HookAhead reports whether the container is on its way to the end of its postStart hook: one of the steps that lead
// there is in flight, or among planned, the steps that begin now. A container that has failed to start, or whose hook
// has failed, is not on its way before it is tried again. One whose hook could not be run at all is not either, though
// the containers after it wait: that is a rule of the plan.
func (s *Slot) HookAhead(planned []Step) bool {
	return s.hasPostStart() &&
		(slices.ContainsFunc(planned, s.leadsToHook) || slices.ContainsFunc(s.state.Memory.Running(), s.leadsToHook))
}

// leadsToHook reports whether a step is one of those from the images of the container to its postStart hook.
func (s *Slot) leadsToHook(step Step) bool {
	switch step := step.(type) {
	case EnsureImage:
		if step.Look {
			return false
		}
		for vol := range ImageVolumes(s.state.Pod, s.Spec) {
			if vol.Name == step.Volume {
				return true
			}
		}
		return step.Container == s.Spec.Name
	case CreateContainer:
		return step.Name == s.Spec.Name
	case StartContainer:
		return step.Name == s.Spec.Name
	case PostStart:
		return step.Name == s.Spec.Name
	}
	return false
}
