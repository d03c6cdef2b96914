package podstate

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Slot is one container of the spec with the facts about its instances.
type Slot struct {
	Spec *corev1.Container
	Role podutil.Role
	// Last is the newest instance; nil if there never was one.
	Last *Container
	// InCurrentSandbox: Last was created in the current sandbox.
	InCurrentSandbox bool
	// Passed: a container that comes after this init container or sidecar was started in the current sandbox. So an init
	// container has succeeded there, and a sidecar has started. The runtime may have lost the record of that, and another
	// instance may have run since.
	Passed bool
	// Vanished: the runtime no longer has Last, so Last was rebuilt from the reported status. A reset may change its end;
	// see findReset.
	Vanished bool
	// Reset: the last instance that was started was removed so that all containers can restart, and the API does not show
	// that yet.
	Reset bool
	// Reported is the container's status in the reported pod status; nil if there is none.
	Reported *corev1.ContainerStatus

	// gone is the instance in the reported status if the runtime no longer has it; nil otherwise.
	gone  *Container
	state *State
}

// findVanished finds out whether the runtime no longer has the instance in the reported status. Last is that instance
// then, unless another is newer. The status may count an instance that failed to start, under the ID of the one before:
// then an instance of the same number that was started is newer. The status may come late, as that of a mirror pod:
// then the agent may have begun to count again, and the numbers say nothing.
func (s *Slot) findVanished(all []Container) {
	if s.Reported == nil || s.Last != nil && podutil.RuntimeID(s.Reported.ContainerID) == s.Last.ID {
		return
	}
	gone := FromStatus(s.Reported)
	if gone == nil || contains(all, gone.ID) {
		return
	}
	s.gone = gone
	if s.Last == nil || !countedAnew(s.Last, gone, s.state.Memory) && (s.Last.Attempt < gone.Attempt ||
		s.Last.Attempt == gone.Attempt && s.Last.State == ContainerCreated) {
		s.Last, s.Vanished = gone, true
	}
}

// countedAnew reports whether last, the newest instance in the runtime, is newer than one that is gone, whatever their
// numbers: it may run, which no instance does once the next is created, or it has been started, and this run of the
// agent has never begun to create an instance with the number of the other.
func countedAnew(last, gone *Container, memory Recall) bool {
	_, created := memory.backoff(Instance{gone.Name, gone.Attempt})
	return last.Alive() || memory.Instance(last.ID).Started && !created
}

// findPassed finds the init containers and sidecars ahead of a container that was started in the current sandbox. Like
// the kubelet, State does not look at the instances of an init container then: the start of the later container may
// have taken effect only after the runtime had lost an instance and the init container had run again. A sidecar that
// has crashed since restarts beside those that come after it.
func (s *State) findPassed() {
	later := false
	for _, slot := range slices.Backward(s.Slots) {
		slot.Passed = later && slot.Role <= podutil.RoleSidecar
		later = later || s.Current != nil && slot.Role != podutil.RoleEphemeral && s.startedInCurrent(slot.Spec.Name)
	}
}

func contains(all []Container, id string) bool {
	return id != "" && Some(all, func(c *Container) bool { return c.ID == id })
}

// MessageNotLocated is the kubelet's message for a container whose end was not observed.
const MessageNotLocated = "The container could not be located when the pod was terminated"

// ExitUnknown is the exit code of a container whose end was not observed. It is the exit code of a killed process.
const ExitUnknown = 137

// FromStatus rebuilds the newest instance of a container from its status; nil if it never had one. If the status shows
// it running, its end was not observed.
func FromStatus(shown *corev1.ContainerStatus) *Container {
	if shown == nil {
		return nil
	}
	ended := shown.State.Terminated
	if ended == nil && shown.State.Waiting != nil {
		ended = shown.LastTerminationState.Terminated
		if ended != nil && shown.ContainerID != "" && ended.ContainerID != "" && ended.ContainerID != shown.ContainerID {
			ended = nil // this is the end of the previous instance
		}
	}
	if shown.ContainerID == "" && ended == nil {
		return nil // it only counts an instance that was created
	}
	c := &Container{
		Name:    shown.Name,
		ID:      podutil.RuntimeID(shown.ContainerID),
		Attempt: uint32(max(shown.RestartCount, 0)),
		State:   ContainerExited,
		Image:   shown.Image,
		ImageID: shown.ImageID,
	}
	if shown.ContainerID == "" && c.Attempt > 0 {
		c.Attempt-- // the restart count of a vanished container already includes its next instance
	}
	if ended != nil {
		c.ID = cmp.Or(c.ID, podutil.RuntimeID(ended.ContainerID))
		c.StartedAt, c.FinishedAt = podutil.Moment(ended.StartedAt), podutil.Moment(ended.FinishedAt)
		c.ExitCode, c.Signal = ended.ExitCode, ended.Signal
		c.Reason, c.Message = ended.Reason, ended.Message
		return c
	}
	if shown.State.Running != nil {
		c.StartedAt = podutil.Moment(shown.State.Running.StartedAt)
	}
	c.ExitCode = ExitUnknown
	c.Reason, c.Message = podutil.ReasonStatusUnknown, MessageNotLocated
	return c
}

// PreviousOrVanished returns the instance before the newest one: Previous, or the one in the reported status if that is
// newer and the runtime no longer has it.
func (s *Slot) PreviousOrVanished() *Container {
	found := s.Previous()
	if s.gone != nil && s.gone.Attempt < s.Last.Attempt && (found == nil || found.Attempt < s.gone.Attempt) {
		return s.gone
	}
	return found
}

// Previous returns the instance before the newest one; nil if the runtime has none.
func (s *Slot) Previous() *Container {
	var found *Container
	for i := range s.state.Containers {
		c := &s.state.Containers[i]
		if c.Name == s.Spec.Name && c.Attempt < s.Last.Attempt && (found == nil || c.Attempt > found.Attempt) {
			found = c
		}
	}
	return found
}

// Followed reports whether the runtime has a newer instance of the container than this slot's.
func (s *Slot) Followed() bool {
	newest := Newest(s.state.Containers, s.Spec.Name)
	return newest != nil && newest.Attempt > s.Last.Attempt
}

// Instance returns a copy of the slot in which c, an instance of its container, is the newest one.
func (s *Slot) Instance(c *Container) *Slot {
	other := *s
	other.Last, other.InCurrentSandbox = c, s.state.Current != nil && c.SandboxID == s.state.Current.ID
	other.Vanished = c == s.gone
	return &other
}

// NextAttempt returns the attempt number that follows the newest instance, the one that the status counts last, and
// those that have left logs. The status can count an instance that failed to start and no longer exists; without a
// container ID its restart count already includes the next instance.
func (s *Slot) NextAttempt() uint32 {
	next := s.state.Logged[s.Spec.Name]
	if s.Last != nil {
		next = max(next, s.Last.Attempt+1)
	}
	if s.Reported != nil {
		counted := uint32(max(s.Reported.RestartCount, 0))
		if s.Reported.ContainerID != "" {
			counted++
		}
		next = max(next, counted)
	}
	return next
}

// Alive reports whether the newest instance may have processes.
func (s *Slot) Alive() bool { return s.Last != nil && s.Last.Alive() }

// Running reports whether the newest instance runs in the current sandbox.
func (s *Slot) Running() bool { return s.InCurrentSandbox && s.Last.State == ContainerRunning }

// InitDone reports whether the containers that come after this one may start.
func (s *Slot) InitDone() bool {
	switch s.Role {
	case podutil.RoleInit:
		return s.Passed || s.InCurrentSandbox && s.Last.State == ContainerExited && !s.InitIncomplete()
	case podutil.RoleSidecar:
		return s.Passed || s.Running() && s.Started()
	}
	return true
}

// Started reports whether the newest instance runs and has passed its postStart hook and startup probe.
func (s *Slot) Started() bool {
	if s.Last == nil || s.Last.State != ContainerRunning || s.HookDue() {
		return false
	}
	if s.Spec.StartupProbe == nil {
		return true
	}
	return passed(s.Probes().Startup, s.ReportedStarted())
}

// Ready reports whether the newest instance has started and passes its readiness probe.
func (s *Slot) Ready() bool {
	return s.Started() && (s.Spec.ReadinessProbe == nil || passed(s.Probes().Readiness, s.ReportedReady()))
}

// passed reports whether a probe has succeeded. Without a result yet, it returns shown, the value in the last status.
func passed(r ProbeResult, shown bool) bool { return r == ProbeSuccess || r != ProbeFailure && shown }

// Probes returns the probe results of the newest instance.
func (s *Slot) Probes() ProbeResults { return s.state.Probes[s.Last.ID] }

// ReportedStarted reports whether the status shows the newest instance as started.
func (s *Slot) ReportedStarted() bool {
	return s.reportedRunning() && s.Reported.Started != nil && *s.Reported.Started
}

// ReportedReady reports whether the status shows the newest instance as ready.
func (s *Slot) ReportedReady() bool { return s.reportedRunning() && s.Reported.Ready }

func (s *Slot) reportedRunning() bool {
	return shows(s.Reported, s.Last.ID) && s.Reported.State.Running != nil
}

// shows reports whether the status of a container is that of an instance.
func shows(st *corev1.ContainerStatus, id string) bool {
	return st != nil && podutil.RuntimeID(st.ContainerID) == id
}

// finished reports whether the container has exited and does not restart.
func (s *Slot) finished() bool {
	return s.Last != nil && s.Last.State == ContainerExited && !s.Restarts()
}

// Restarts reports whether an exited container runs again: by its restart policy, or because the agent stopped it so
// that another instance follows.
func (s *Slot) Restarts() bool { return s.RestartsAfter(s.Last.ExitCode, s.Last.Reason) }

// RestartsAfter reports whether the container would run again after an exit with exitCode and reason; see Restarts.
func (s *Slot) RestartsAfter(exitCode int32, reason string) bool {
	switch {
	case s.state.Resetting && s.Role != podutil.RoleEphemeral:
		return true
	case s.Last != nil && (s.StoppedToRestart() || s.Last.removedForReset()):
		return true
	case s.Role == podutil.RoleInit && podutil.InitFailed(exitCode, reason) && !s.NeverRestarts():
		return true
	}
	return podutil.ShouldRestart(&s.state.Pod.Spec, s.Spec, s.Role, exitCode)
}

// StoppedToRestart reports whether the agent has stopped the newest instance so that another follows, whatever its exit
// code: its work was not done.
func (s *Slot) StoppedToRestart() bool {
	stop := s.stopped()
	return stop.Replaces() || stop.interrupts() && !s.NeverRestarts()
}

// InitIncomplete reports whether the newest instance of an init container, which has exited, has not done its work.
func (s *Slot) InitIncomplete() bool {
	return podutil.InitFailed(s.Last.ExitCode, s.Last.Reason) || s.StoppedToRestart()
}

// NeverRestarts reports whether the restart policy of the container is Never.
func (s *Slot) NeverRestarts() bool {
	return podutil.RestartPolicy(&s.state.Pod.Spec, s.Spec, s.Role) == corev1.RestartPolicyNever
}

// stopped returns the last stop by which the agent itself ended the newest instance; the zero value if there was none.
func (s *Slot) stopped() StopContainer {
	return s.state.Memory.Instance(s.Last.ID).Stop
}

// Changed reports whether the newest instance was created from a spec other than the current one. It is false if that
// is not known.
func (s *Slot) Changed() bool {
	want := s.state.Hashes[s.Spec.Name]
	return want != "" && s.Last.Hash != "" && s.Last.Hash != want
}

// Outdated reports whether the newest instance must be replaced because the spec has changed.
func (s *Slot) Outdated() bool {
	return s.Changed() && s.Role != podutil.RoleInit && s.Role != podutil.RoleEphemeral
}
