package podstate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// AsksForReset reports whether by its container's restart rules the end of an instance asks for a reset:
// all containers of the pod restart (RestartAllContainers, KEP-5532).
func AsksForReset(spec *corev1.Container, c *Container) bool {
	if c == nil || c.State != ContainerExited || c.Reason == ReasonRestartingAll {
		return false
	}
	rule := podutil.RestartRule(spec, c.ExitCode)
	return rule != nil && rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers
}

// findReset finds out whether a reset is going on: an exit asks for it, or the status says so of one that
// did. Instances that the runtime has lost by then were removed for it, as were those that a new run of the
// agent misses where the marker file of a reset exists.
func (s *State) findReset() {
	if !podutil.RestartsAll(&s.Pod.Spec) || s.Desired.Stop != nil || s.Rejected != nil ||
		podutil.IsTerminal(s.Reported.Phase) {
		return
	}
	due := podutil.IsTrue(s.Reported, corev1.AllContainersRestarting)
	for _, slot := range s.Slots {
		if slot.Role != podutil.RoleEphemeral && AsksForReset(slot.Spec, slot.Last) {
			due, s.resetAsked = true, s.resetAsked || !slot.Lost
		}
	}
	if due || s.ResetNoted && s.Memory.Reported() == nil {
		for _, slot := range s.Slots {
			if slot.Lost && slot.Role != podutil.RoleEphemeral && !alreadyReset(slot.Shown) {
				slot.Reset = true
				slot.Last.ExitCode, slot.Last.Reason, slot.Last.Message = ExitUnknown, ReasonRestartingAll, MessageRestartingAll
			}
		}
	}
	s.Resetting = due && slices.ContainsFunc(s.Containers, func(c Container) bool { return s.RemovedByReset(&c) != nil })
}

// alreadyReset reports whether the status says of the container that it waits to restart, or that it never
// ran. Not one whose last instance ended in another way: that waits for the start of the next one, which a
// reset removes.
func alreadyReset(shown *corev1.ContainerStatus) bool {
	ended := shown.LastTerminationState.Terminated
	return shown.State.Waiting != nil && shown.ContainerID == "" && (ended == nil || ended.Reason == ReasonRestartingAll)
}

// RemovedByReset is the spec of an instance that a reset removes; nil for one that stays. Where no exit
// asks any more, an instance that is newer than the status came after the reset.
func (s *State) RemovedByReset(c *Container) *corev1.Container {
	for _, slot := range s.Slots {
		if slot.Spec.Name != c.Name || slot.Role == podutil.RoleEphemeral {
			continue
		}
		if !s.resetAsked && slot.Shown != nil &&
			(c.Attempt > uint32(slot.Shown.RestartCount) || alreadyReset(slot.Shown)) {
			return nil
		}
		return slot.Spec
	}
	return nil
}

// ResetUnreported reports whether the API may not have heard that a container was removed by a reset, and its next
// instance has not started.
func (s *Slot) ResetUnreported() bool {
	if s.Role == podutil.RoleEphemeral || slices.ContainsFunc(s.state.Containers, func(c Container) bool {
		return c.Name == s.Spec.Name && c.State != ContainerCreated
	}) {
		return false
	}
	own, api := s.memory.ReportedContainer(s.Spec.Name), podutil.ContainerStatus(&s.state.Pod.Status, s.Spec.Name)
	return s.Reset || own == nil || api == nil || api.RestartCount < own.RestartCount
}
