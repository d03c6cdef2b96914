package podstate

import (
	"slices"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// settleUnknown replaces the ends of instances that the agent has stopped because their state was unknown, and that no
// other follows. The exit code after such a stop does not say whether the work was done, so as with the kubelet the
// instance has failed.
func (s *State) settleUnknown() {
	for _, slot := range s.Slots {
		last := slot.Last
		if last == nil || last.State != ContainerExited || slot.stopped().Cause != CauseUnknown ||
			!slot.NeverRestarts() || slot.Missed() {
			continue
		}
		failed := *last
		failed.ExitCode = ExitUnknown
		failed.Reason, failed.Message = podutil.ReasonStatusUnknown, MessageNotLocated
		slot.Last = &failed
	}
}

// Missed reports whether the newest instance of an app container with the restart policy Never, whose state is or was
// unknown, is followed by another. Like the kubelet, the agent runs it again while other app containers go on, which
// may need it. Without one, the pod has failed.
func (s *Slot) Missed() bool {
	return s.Role == podutil.RoleApp && s.NeverRestarts() && s.unknown() &&
		slices.ContainsFunc(s.state.Slots, func(other *Slot) bool {
			return other != s && other.Role == podutil.RoleApp && other.goesOn()
		})
}

// goesOn reports whether the container runs or is going to.
func (s *Slot) goesOn() bool {
	switch {
	case s.Last == nil || s.Last.State == ContainerCreated || s.Last.State == ContainerRunning:
		return true
	case s.unknown():
		return podutil.ShouldRestart(&s.state.Pod.Spec, s.Spec, s.Role, ExitUnknown)
	}
	return s.Restarts()
}

// unknown reports whether the state of the newest instance is unknown, or was when the agent stopped it.
func (s *Slot) unknown() bool {
	return s.Last.State == ContainerUnknown || s.stopped().Cause == CauseUnknown
}
