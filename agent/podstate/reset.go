package podstate

import (
	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// ResetMark is the content of the marker file of a reset. A reset is removing first, then removed, then over. So it
// goes on after a crash of the agent, even if the runtime has lost the instance that requested it.
type ResetMark string

const (
	// ResetUnmarked: there is no marker file.
	ResetUnmarked ResetMark = ""
	// ResetRemoving: all instances that exist are older than the reset, and are removed for it.
	ResetRemoving ResetMark = "removing"
	// ResetRemoved: all instances were removed for the reset. The API may not show that yet.
	ResetRemoved ResetMark = "removed"
)

// ParseResetMark returns the mark in a marker file. Earlier versions wrote an empty file when only the instances that
// had requested the reset were left; ResetRemoved has the same meaning.
func ParseResetMark(content string) ResetMark {
	if ResetMark(content) == ResetRemoving {
		return ResetRemoving
	}
	return ResetRemoved
}

// AsksForReset reports whether the exit of the newest instance requests a reset by the container's restart rules. In a
// reset all containers of the pod restart (RestartAllContainers, KEP-5532). An instance that the agent itself has
// stopped so that another follows requests none.
func (s *Slot) AsksForReset() bool {
	c := s.Last
	if s.Role == podutil.RoleEphemeral || c == nil || c.State != ContainerExited || c.removedForReset() ||
		s.StoppedToRestart() {
		return false
	}
	rule := podutil.RestartRule(s.Spec, c.ExitCode)
	return rule != nil && rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers
}

// removedForReset reports whether a reset has removed the instance.
func (c *Container) removedForReset() bool { return c.Reason == podutil.ReasonRestartingAll }

// findReset determines whether a reset is in progress: the exit of an instance requests it, the marker file says that
// instances are being removed, or without such a file the reported status says so. Instances that the runtime no longer
// has were then removed for the reset. If the marker file says that all were removed, the same is true for instances
// that are missing when the agent starts, also if the next instance has been created.
func (s *State) findReset() {
	if !podutil.RestartsAll(&s.Pod.Spec) || s.Stop != nil || s.Rejected != nil ||
		podutil.IsTerminal(s.Reported.Phase) {
		return
	}
	s.resetAsked = s.ResetMark == ResetRemoving
	due := s.resetAsked || s.ResetMark == ResetUnmarked && podutil.IsTrue(s.Reported, corev1.AllContainersRestarting)
	for _, slot := range s.Slots {
		if slot.AsksForReset() {
			due, s.resetAsked = true, s.resetAsked || !slot.Vanished
		}
	}
	begins := s.ResetMark == ResetRemoved && s.Memory.Reported() == nil
	for _, slot := range s.Slots {
		if slot.Role == podutil.RoleEphemeral || slot.Reported == nil || alreadyReset(slot.Reported) {
			continue
		}
		slot.Reset = slot.Vanished && (due || begins) || begins && slot.Last != nil && !slot.started()
		if slot.Reset && slot.Vanished {
			slot.Last.ExitCode = ExitUnknown
			slot.Last.Reason, slot.Last.Message = podutil.ReasonRestartingAll, podutil.MessageRestartingAll
		}
	}
	s.Resetting = s.ResetMark == ResetRemoving ||
		due && Some(s.Containers, s.ResetRemoves)
}

// alreadyReset reports whether, by its status, the container waits to restart after a reset or has never run. It is
// false if the last instance ended in another way: the container then waits for the start of its next instance, which
// the reset removes.
func alreadyReset(shown *corev1.ContainerStatus) bool {
	ended := shown.LastTerminationState.Terminated
	return shown.State.Waiting != nil && shown.ContainerID == "" &&
		(ended == nil || ended.Reason == podutil.ReasonRestartingAll)
}

// ResetRemoves reports whether a reset removes an instance. If only the status shows the reset, an instance that is
// newer than the status was created after the reset.
func (s *State) ResetRemoves(c *Container) bool {
	slot := s.slot(c.Name)
	if slot == nil || slot.Role == podutil.RoleEphemeral {
		return false
	}
	return s.resetAsked || slot.Reported == nil ||
		c.Attempt <= uint32(slot.Reported.RestartCount) && !alreadyReset(slot.Reported)
}

// ResetUnreported reports whether the API may not show yet that a reset has removed a container whose next instance has
// not started.
func (s *Slot) ResetUnreported() bool {
	if s.Role == podutil.RoleEphemeral || s.started() {
		return false
	}
	own, api := s.state.Memory.reportedContainer(s.Spec.Name), podutil.ContainerStatus(&s.state.Pod.Status, s.Spec.Name)
	return s.Reset || own == nil || api == nil || api.RestartCount < own.RestartCount
}

// started reports whether the runtime has an instance of the container that was started.
func (s *Slot) started() bool {
	return Some(s.state.Containers, func(c *Container) bool {
		return c.Name == s.Spec.Name && c.State != ContainerCreated
	})
}
