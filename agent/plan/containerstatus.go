package plan

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// messagesMax bounds the termination messages of a whole pod in its status.
const messagesMax = 12 << 10

// containerStatuses fills in one status for each container of the spec: init containers in the spec's order, the others by
// name.
func (v *view) containerStatuses(st *corev1.PodStatus) {
	for i := range v.slots {
		one := v.containerStatus(&v.slots[i])
		switch v.slots[i].role {
		case podutil.RoleApp:
			st.ContainerStatuses = append(st.ContainerStatuses, one)
		case podutil.RoleEphemeral:
			st.EphemeralContainerStatuses = append(st.EphemeralContainerStatuses, one)
		default:
			st.InitContainerStatuses = append(st.InitContainerStatuses, one)
		}
	}
	sortByName(st.ContainerStatuses)
	sortByName(st.EphemeralContainerStatuses)
}

func sortByName(all []corev1.ContainerStatus) {
	byName := func(a, b corev1.ContainerStatus) int { return cmp.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(all, byName) {
		slices.SortFunc(all, byName)
	}
}

func (v *view) containerStatus(s *slot) corev1.ContainerStatus {
	if podutil.IsTerminal(v.old.Phase) && s.shown != nil && s.shown.State.Terminated != nil {
		return *s.shown // the pod has ended, and so has this
	}
	s = v.spokenOf(s)
	st := v.bySpec(s)
	switch {
	case s.last != nil && !s.lost:
		v.seen(&st, s)
	case s.reset:
		removedForReset(&st, s.shown)
	case s.shown != nil:
		st.State = v.notYet()
		v.vanished(&st, s)
	default:
		st.State = v.notYet()
	}
	if st.State.Waiting != nil && s.role == podutil.RoleInit && s.last == nil && v.appMade() {
		st.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed",
			Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally"}}
	}
	v.explainWaiting(&st, s)
	v.probed(&st, s)
	return st
}

// spokenOf is the slot that the status tells of: where the newest instance is only made yet, that with the one before. An instance
// counts as a restart when it starts, or fails to. Once it has been counted, the status does not go back to the one before.
func (v *view) spokenOf(s *slot) *slot {
	if s.last == nil || s.lost || s.last.State != ContainerCreated {
		return s
	}
	_, failed := v.o.Memory.Failures[StartContainer{ID: s.last.ID}.Key()]
	counted := s.shown != nil && s.shown.RestartCount >= int32(s.last.Attempt)
	before := v.before(s)
	if failed || counted || before == nil || before.State != ContainerExited {
		return s
	}
	ended := *s
	ended.last, ended.here = before, v.current != nil && before.SandboxID == v.current.ID
	return &ended
}

// bySpec is what the status of a container says without any instance.
func (v *view) bySpec(s *slot) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: s.spec.Name, Image: s.spec.Image, VolumeMounts: v.volumeMounts(s)}
}

// notYet is the state of a container whose turn has not come.
func (v *view) notYet() corev1.ContainerState {
	reason := ReasonContainerCreating
	if v.hasInit() {
		reason = ReasonPodInitializing
	}
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

func (v *view) volumeMounts(s *slot) []corev1.VolumeMountStatus {
	if s.shown != nil && s.shown.VolumeMounts != nil {
		return s.shown.VolumeMounts
	}
	if len(s.spec.VolumeMounts) == 0 {
		return nil
	}
	all := make([]corev1.VolumeMountStatus, 0, len(s.spec.VolumeMounts))
	for _, m := range s.spec.VolumeMounts {
		one := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			one.RecursiveReadOnly = v.recursiveReadOnly(m)
		}
		all = append(all, one)
	}
	return all
}

func (v *view) recursiveReadOnly(m corev1.VolumeMount) *corev1.RecursiveReadOnlyMode {
	mode := corev1.RecursiveReadOnlyDisabled
	if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != mode && v.o.Node.RecursiveReadOnly &&
		(m.MountPropagation == nil || *m.MountPropagation == corev1.MountPropagationNone) {
		mode = corev1.RecursiveReadOnlyEnabled
	}
	return &mode
}

// appMade: the runtime knows an instance of an app container.
func (v *view) appMade() bool {
	return slices.ContainsFunc(v.slots, func(s slot) bool { return s.role == podutil.RoleApp && s.last != nil && !s.lost })
}

// seen fills in what the runtime says of the newest instance, and of the one before.
func (v *view) seen(st *corev1.ContainerStatus, s *slot) {
	c := s.last
	st.Image, st.ImageID, st.RestartCount, st.User = c.Image, c.ImageID, int32(c.Attempt), c.User
	id := podutil.ContainerID(v.o.Node.RuntimeName, c.ID)
	if c.State != ContainerCreated {
		st.ContainerID = id
	}
	st.Resources = v.containerResources(s)
	st.AllocatedResources = s.spec.Resources.Requests
	st.State = v.state(s)
	if old := s.shown; old != nil {
		st.RestartCount = max(st.RestartCount, old.RestartCount)
		st.LastTerminationState.Terminated = old.LastTerminationState.Terminated
		if old.State.Terminated != nil && old.ContainerID != id {
			st.LastTerminationState.Terminated = old.State.Terminated
		}
		if last := st.LastTerminationState.Terminated; last != nil && last.ContainerID == id {
			st.LastTerminationState.Terminated = nil // it was said while the container waited for its next start
		}
		keepMessage(&st.State, old.State)
		keepMessage(&st.State, old.LastTerminationState)
	}
	before := v.before(s)
	if before != nil && before.State == ContainerExited && (before.Attempt+1 == c.Attempt || st.LastTerminationState.Terminated == nil) {
		last := corev1.ContainerState{Terminated: v.terminated(before)}
		keepMessage(&last, st.LastTerminationState)
		st.LastTerminationState = last
	}
}

// keepMessage: the message that a container left may be gone from the disk by now.
func keepMessage(state *corev1.ContainerState, old corev1.ContainerState) {
	now, then := state.Terminated, old.Terminated
	if now != nil && then != nil && now.Message == "" && now.ContainerID == then.ContainerID {
		now.Message = then.Message
	}
}

// before is the instance before the newest; nil where the runtime has none.
func (v *view) before(s *slot) *Container {
	var found *Container
	for i := range v.o.Containers {
		c := &v.o.Containers[i]
		if c.Name == s.spec.Name && c.Attempt < s.last.Attempt && (found == nil || c.Attempt > found.Attempt) {
			found = c
		}
	}
	return found
}

func (v *view) state(s *slot) corev1.ContainerState {
	c := s.last
	switch c.State {
	case ContainerRunning:
		if v.hookDue(s) {
			return v.notYet() // running is what a container is called once its postStart hook is through
		}
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: seconds(c.StartedAt)}}
	case ContainerExited:
		return corev1.ContainerState{Terminated: v.terminated(c)}
	case ContainerUnknown:
		if s.shown != nil && s.shown.State.Waiting == nil {
			return corev1.ContainerState{Terminated: unknownEnd(messageNotLocated)}
		}
	}
	return v.notYet()
}

func (v *view) terminated(c *Container) *corev1.ContainerStateTerminated {
	t := &corev1.ContainerStateTerminated{ExitCode: c.ExitCode, Signal: c.Signal, Reason: c.Reason, Message: c.Message,
		StartedAt: seconds(c.StartedAt), FinishedAt: seconds(c.FinishedAt), ContainerID: podutil.ContainerID(v.o.Node.RuntimeName, c.ID)}
	if limit := messagesMax / len(v.slots); len(t.Message) > limit {
		t.Message = t.Message[:limit]
	}
	return t
}

func unknownEnd(message string) *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{Reason: ReasonStatusUnknown, Message: message, ExitCode: exitUnknown}
}

// vanished fills in what the API showed of a container that the runtime no longer knows. Its container ID stays as long as
// the status speaks of that instance: the next attempt is counted from it.
func (v *view) vanished(st *corev1.ContainerStatus, s *slot) {
	old := s.shown
	ran := old.State.Running != nil || old.State.Waiting != nil && old.ContainerID != "" && lastEnd(old) == nil
	if old.State.Terminated != nil {
		*st = *old
		return
	}
	st.RestartCount, st.LastTerminationState = old.RestartCount, old.LastTerminationState
	if !ran {
		st.ContainerID, st.ImageID = old.ContainerID, old.ImageID
		return
	}
	st.LastTerminationState = corev1.ContainerState{Terminated: unknownEnd(
		"The container could not be located when the pod was deleted.  The container used to be Running")}
	if v.d.Pod.DeletionTimestamp == nil {
		st.RestartCount++ // of the instance that follows
	}
}

// lastEnd is the end of the very instance that a waiting status names.
func lastEnd(old *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if t := old.LastTerminationState.Terminated; t != nil && (t.ContainerID == "" || t.ContainerID == old.ContainerID) {
		return t
	}
	return nil
}

// explainWaiting turns the state of a container that is to run, but cannot yet, into the reason why.
func (v *view) explainWaiting(st *corev1.ContainerStatus, s *slot) {
	reason, message := v.holdUp(s)
	if reason == "" {
		return
	}
	if st.State.Terminated != nil {
		st.LastTerminationState = st.State
	}
	st.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// holdUp is what keeps a container from running that should; empty where nothing has gone wrong.
func (v *view) holdUp(s *slot) (reason, message string) {
	if v.stop != nil || v.resetting || v.d.Pod.DeletionTimestamp != nil {
		return "", ""
	}
	if s.last != nil {
		switch s.last.State {
		case ContainerRunning:
			return v.hookFailure(s)
		case ContainerUnknown:
			return "", ""
		case ContainerExited:
			if s.role == podutil.RoleInit && s.last.ExitCode == 0 || !v.restarts(s) {
				return "", ""
			}
		}
		if v.backingOff(s) && v.o.Now.Before(v.restartAt(s)) {
			return ReasonCrashLoopBackOff, v.backoffMessage(s)
		}
	}
	if reason, message = v.failure(s); reason == "" && s.last != nil && v.backingOff(s) {
		return ReasonCrashLoopBackOff, v.backoffMessage(s)
	}
	return reason, message
}

func (v *view) hookFailure(s *slot) (reason, message string) {
	if h := v.o.Memory.Hooks[s.last.ID]; h.Failure != "" {
		return ReasonPostStartHook, h.Failure
	}
	return "", ""
}

// failure is the last failure on the way to the next instance.
func (v *view) failure(s *slot) (reason, message string) {
	if s.last != nil {
		if f, failed := v.o.Memory.Failures[StartContainer{ID: s.last.ID}.Key()]; failed {
			return cmp.Or(f.Reason, ReasonRunContainer), f.Message
		}
		if s.last.State == ContainerExited {
			if reason, message = v.hookFailure(s); reason != "" {
				return reason, message
			}
		}
	}
	if s.last != nil && s.last.State == ContainerCreated {
		return "", ""
	}
	if f, failed := v.o.Memory.Failures[CreateContainer{Name: s.spec.Name}.Key()]; failed {
		return cmp.Or(f.Reason, ReasonCreateContainer), f.Message
	}
	if f, failed := v.o.Memory.FailedImage(v.d.Pod, s.spec); failed {
		return imageFailure(f)
	}
	return "", ""
}

// imageFailure: the first failed pull shows itself, later ones show that the next has to wait.
func imageFailure(f Failure) (reason, message string) {
	reason = cmp.Or(f.Reason, ReasonErrImagePull)
	switch reason {
	case ReasonErrImageNeverPull, ReasonInvalidImageName, "ImageInspectError":
		return reason, f.Message
	}
	if f.Count < 2 {
		return reason, f.Message
	}
	return ReasonImagePullBackOff, fmt.Sprintf("Back-off pulling image %q: %s: %s", f.Image, reason, f.Message)
}

// backingOff: the next instance has, or had, to wait for a crash-loop back-off.
func (v *view) backingOff(s *slot) bool {
	return s.last.State == ContainerExited && !s.lost && v.restartWait(s) > 0
}

func (v *view) backoffMessage(s *slot) string {
	return fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", v.crashDelay(s), s.spec.Name, podName(v.d.Pod))
}

// probed fills in what probes and the end of an init container say: started and ready.
func (v *view) probed(st *corev1.ContainerStatus, s *slot) {
	if s.role == podutil.RoleEphemeral {
		return
	}
	started := st.State.Running != nil && v.started(s)
	switch {
	case s.role == podutil.RoleInit:
		started = st.State.Running != nil
		st.Ready = st.State.Terminated != nil && st.State.Terminated.ExitCode == 0
	default:
		st.Ready = started && v.ready(s)
	}
	st.Started = &started
}

// closeContainers ends the statuses of a pod that is through: what was expected to run, and did not, has failed.
func (v *view) closeContainers(st *corev1.PodStatus) {
	if v.pastInitBefore(st) {
		closeAll(st.ContainerStatuses)
	}
	begun := 0
	for i := range st.InitContainerStatuses {
		if c := &st.InitContainerStatuses[i]; i == 0 || c.State.Waiting == nil || c.LastTerminationState.Terminated != nil {
			begun = i + 1
		}
	}
	closeAll(st.InitContainerStatuses[:begun])
}

func closeAll(all []corev1.ContainerStatus) {
	for i := range all {
		if c := &all[i]; c.State.Terminated == nil {
			c.State = corev1.ContainerState{Terminated: unknownEnd(messageNotLocated)}
		}
	}
}

// pastInitBefore: the statuses tell that the pod has been through its init containers at some time.
func (v *view) pastInitBefore(st *corev1.PodStatus) bool {
	if !v.hasInit() {
		return true
	}
	for i := range st.ContainerStatuses {
		if c := &st.ContainerStatuses[i]; c.State.Waiting == nil || c.LastTerminationState.Terminated != nil {
			return true
		}
	}
	last := len(st.InitContainerStatuses) - 1
	c := &st.InitContainerStatuses[last]
	if v.slots[last].role == podutil.RoleSidecar {
		return c.State.Running != nil && c.Started != nil && *c.Started
	}
	end := endOf(c)
	return end != nil && end.ExitCode == 0
}
