package podstatus

import (
	"slices"
	"sort"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// containerStatuses fills in one status for each container of the spec: init containers in the order of the spec, all
// others sorted by name.
func (b *builder) containerStatuses() {
	st, spec := b.st, &b.Pod.Spec
	st.ContainerStatuses = slices.Grow(st.ContainerStatuses, len(spec.Containers))
	st.InitContainerStatuses = slices.Grow(st.InitContainerStatuses, len(spec.InitContainers))
	for _, slot := range b.Slots {
		one := b.containerStatus(slot)
		switch slot.Role {
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
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
}

func (b *builder) containerStatus(slot *podstate.Slot) corev1.ContainerStatus {
	if podutil.IsTerminal(b.Reported.Phase) && slot.Reported != nil && slot.Reported.State.Terminated != nil {
		return *slot.Reported // the pod and this container have ended
	}
	slot = b.reportedInstance(slot)
	st := corev1.ContainerStatus{Name: slot.Spec.Name, Image: slot.Spec.Image, VolumeMounts: b.volumeMounts(slot)}
	switch {
	case slot.Reset:
		fillReset(&st, slot)
	case slot.Last != nil && !slot.Vanished:
		b.fillFromRuntime(&st, slot)
	case slot.Reported != nil:
		st.State = b.waiting()
		b.fillFromReport(&st, slot)
		b.treatedAsDone(&st, slot)
	default:
		st.State = b.waiting()
	}
	if st.State.Waiting != nil && slot.Role == podutil.RoleInit && slot.Last == nil && b.appCreated() {
		st.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Reason:  "Completed",
			Message: messageTreatedAsDone,
		}}
	}
	b.explainWaiting(&st, slot)
	setReady(&st, slot)
	st.AllocatedResourcesStatus = b.deviceHealth(slot)
	b.normalize(&st.State)
	b.normalize(&st.LastTerminationState)
	return st
}

const messageTreatedAsDone = "Unable to get init container status from container runtime and pod has been " +
	"initialized, treat it as exited normally"

// treatedAsDone says in the status of a completed init container of a static pod that the runtime no longer has it. The
// kubelet says so too, because it does not read the status of a mirror pod; here the rest of the status stays.
func (b *builder) treatedAsDone(st *corev1.ContainerStatus, slot *podstate.Slot) {
	done := st.State.Terminated
	if slot.Role != podutil.RoleInit || !podutil.IsStatic(b.Pod) || !b.Initialized ||
		done == nil || done.ExitCode != 0 || done.Message != "" {
		return
	}
	said := *done
	said.Message = messageTreatedAsDone
	st.State.Terminated = &said
}

// reportedInstance returns the slot with the instance that the status describes. While the newest instance is only
// created, that is the previous one. An instance counts as a restart once it has started or failed to start. After it
// was counted, the status does not describe the previous instance again. In a pod that is being stopped, an instance
// that is being started counts already: the previous one would look as if it were the last.
func (b *builder) reportedInstance(slot *podstate.Slot) *podstate.Slot {
	if slot.Last == nil || slot.Vanished || slot.Last.State != podstate.ContainerCreated {
		return slot
	}
	_, failed := b.Memory.Failure(podstate.StartContainer{ID: slot.Last.ID}.Key())
	starting := (b.Ending != nil || b.Pod.DeletionTimestamp != nil) && b.Memory.Starting(slot.Last.ID)
	counted := slot.Reported != nil && slot.Reported.RestartCount >= int32(slot.Last.Attempt)
	before := slot.PreviousOrVanished()
	if failed || starting || counted || before == nil || before.State != podstate.ContainerExited {
		return slot
	}
	return slot.Instance(before)
}

// waiting returns the state of a container that has not started yet.
func (b *builder) waiting() corev1.ContainerState {
	if b.unstarted == nil {
		b.unstarted = &corev1.ContainerStateWaiting{Reason: b.notStarted()}
	}
	return corev1.ContainerState{Waiting: b.unstarted}
}

// notStarted returns the reason of the state of a container that has not started yet.
func (b *builder) notStarted() string {
	if b.HasInit() {
		return podutil.ReasonPodInitializing
	}
	return podutil.ReasonContainerCreating
}

func (b *builder) volumeMounts(slot *podstate.Slot) []corev1.VolumeMountStatus {
	if slot.Reported != nil && slot.Reported.VolumeMounts != nil {
		return slot.Reported.VolumeMounts
	}
	if len(slot.Spec.VolumeMounts) == 0 {
		return nil
	}
	all := make([]corev1.VolumeMountStatus, 0, len(slot.Spec.VolumeMounts))
	for _, m := range slot.Spec.VolumeMounts {
		if m.RecursiveReadOnly != nil && b.Node.RecursiveReadOnly == nil {
			return nil // what is said once stays
		}
		one := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			one.RecursiveReadOnly = recursiveReadOnly(m, b.Node.RecursiveReadOnly)
		}
		all = append(all, one)
	}
	return all
}

// recursiveReadOnly returns the mode of a read-only mount. supported says whether the runtime handler supports
// recursive read-only mounts; it is set if the mount asks for that.
func recursiveReadOnly(m corev1.VolumeMount, supported *bool) *corev1.RecursiveReadOnlyMode {
	mode := corev1.RecursiveReadOnlyDisabled
	if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != mode && *supported &&
		(m.MountPropagation == nil || *m.MountPropagation == corev1.MountPropagationNone) {
		mode = corev1.RecursiveReadOnlyEnabled
	}
	return &mode
}

// appCreated reports whether the runtime has an instance of an app container.
func (b *builder) appCreated() bool {
	return slices.ContainsFunc(b.Slots, func(slot *podstate.Slot) bool {
		return slot.Role == podutil.RoleApp && slot.Last != nil && !slot.Vanished
	})
}

// fillFromRuntime fills in the state of the newest instance and of the previous one, as the runtime reports them.
func (b *builder) fillFromRuntime(st *corev1.ContainerStatus, slot *podstate.Slot) {
	c := slot.Last
	id := podutil.ContainerID(b.Node.RuntimeName, c.ID)
	st.Image, st.ImageID = c.Image, c.ImageID
	st.RestartCount = int32(c.Attempt)
	st.User = c.User
	if c.State != podstate.ContainerCreated {
		st.ContainerID = id
	}
	st.Resources = slot.ReportedResources()
	st.AllocatedResources = slot.Spec.Resources.Requests
	st.State = b.state(slot, id)
	if old := slot.Reported; old != nil {
		st.RestartCount = max(st.RestartCount, old.RestartCount)
		st.LastTerminationState.Terminated = old.LastTerminationState.Terminated
		if old.State.Terminated != nil && old.ContainerID != id {
			st.LastTerminationState.Terminated = old.State.Terminated
		}
		if last := st.LastTerminationState.Terminated; last != nil && last.ContainerID == id {
			st.LastTerminationState.Terminated = nil // it was reported while the container waited for its next start
		}
		keepMessage(&st.State, old.State)
		keepMessage(&st.State, old.LastTerminationState)
	}
	before, known := slot.Previous(), st.LastTerminationState.Terminated != nil
	if before != nil && before.State == podstate.ContainerExited && (before.Attempt+1 == c.Attempt || !known) {
		last := corev1.ContainerState{Terminated: terminated(before, podutil.ContainerID(b.Node.RuntimeName, before.ID))}
		keepMessage(&last, st.LastTerminationState)
		st.LastTerminationState = last
	}
}

// keepMessage keeps the termination message of the same instance: its file may no longer exist on disk.
func keepMessage(state *corev1.ContainerState, old corev1.ContainerState) {
	now, then := state.Terminated, old.Terminated
	if now != nil && then != nil && now.Message == "" && now.ContainerID == then.ContainerID {
		now.Message = then.Message
	}
}

// state returns the state of the newest instance, whose ID is id in statuses.
func (b *builder) state(slot *podstate.Slot, id string) corev1.ContainerState {
	c := slot.Last
	switch c.State {
	case podstate.ContainerRunning:
		if slot.HookDue() && !b.hookGivenUp(c.ID) {
			return b.waiting() // a container is reported as running once its postStart hook has succeeded
		}
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: seconds(c.StartedAt)}}
	case podstate.ContainerExited:
		return corev1.ContainerState{Terminated: terminated(c, id)}
	case podstate.ContainerUnknown:
		if slot.Reported != nil && slot.Reported.State.Waiting == nil {
			return corev1.ContainerState{Terminated: unknownEnd(podstate.MessageNotLocated)}
		}
	}
	return b.waiting()
}

// hookGivenUp reports whether the pod must end and the postStart hook of a container, which has not succeeded, does not
// run any more.
func (b *builder) hookGivenUp(id string) bool {
	return b.Ending != nil && b.Memory.InFlight(podstate.PostStart{ID: id}.Key()) == nil
}

// terminated returns the state of an exited instance, whose ID is id in statuses. As with the kubelet, one that could
// not be started has started in 1970: for null, kubectl describe would print the year 1.
func terminated(c *podstate.Container, id string) *corev1.ContainerStateTerminated {
	end := &corev1.ContainerStateTerminated{
		ExitCode:    c.ExitCode,
		Signal:      c.Signal,
		Reason:      c.Reason,
		Message:     c.Message,
		StartedAt:   seconds(c.StartedAt),
		FinishedAt:  seconds(c.FinishedAt),
		ContainerID: id,
	}
	if c.StartedAt.IsZero() && !c.FinishedAt.IsZero() {
		end.StartedAt = metav1.Unix(0, 0)
	}
	return end
}

func unknownEnd(message string) *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{
		Reason:   podutil.ReasonStatusUnknown,
		Message:  message,
		ExitCode: podstate.ExitUnknown,
	}
}

// fillFromReport fills in the status of a container that the runtime no longer has, from its reported status. The
// container ID stays while the status describes that instance, because the number of the next attempt depends on it.
func (b *builder) fillFromReport(st *corev1.ContainerStatus, slot *podstate.Slot) {
	old := slot.Reported
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
	if slot.Last != nil && !slot.Restarts() {
		st.ContainerID, st.ImageID = old.ContainerID, old.ImageID
		st.State = corev1.ContainerState{Terminated: terminated(slot.Last, old.ContainerID)}
		return
	}
	st.LastTerminationState = corev1.ContainerState{Terminated: unknownEnd(
		"The container could not be located when the pod was deleted.  The container used to be Running")}
	if b.Pod.DeletionTimestamp == nil {
		st.RestartCount++ // it already counts the next instance
	}
}

// lastEnd returns the last termination in a waiting status, if it belongs to the instance that the status names.
func lastEnd(old *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if t := old.LastTerminationState.Terminated; t != nil && (t.ContainerID == "" || t.ContainerID == old.ContainerID) {
		return t
	}
	return nil
}

// fillReset fills in the status of a container whose instances were removed so that it can restart. Unlike the
// kubelet's it has the times of the last instance: its back-off depends on them.
func fillReset(st *corev1.ContainerStatus, slot *podstate.Slot) {
	st.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
		Reason:  podutil.ReasonRestartingAll,
		Message: podutil.MessageRestartingAll,
	}}
	st.LastTerminationState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Reason:     podutil.ReasonRestartingAll,
		Message:    podutil.MessageRestartingAll,
		ExitCode:   podstate.ExitUnknown,
		StartedAt:  seconds(slot.Last.StartedAt),
		FinishedAt: seconds(slot.Last.FinishedAt),
	}}
	st.RestartCount = slot.Reported.RestartCount + 1
}

// setReady fills in the fields Started and Ready from the probe results, or from the end of an init container.
func setReady(st *corev1.ContainerStatus, slot *podstate.Slot) {
	if slot.Role == podutil.RoleEphemeral {
		return
	}
	started := st.State.Running != nil
	if slot.Role == podutil.RoleInit {
		st.Ready = initDone(st.State.Terminated)
	} else {
		started = started && slot.Started()
		st.Ready = started && slot.Ready()
	}
	st.Started = &started
}

// closeContainers sets the final container statuses of a pod that has ended. A container that was expected to run,
// and did not, has failed.
func (b *builder) closeContainers() {
	st := b.st
	if b.wasInitialized() {
		closeAll(st.ContainerStatuses)
	}
	begun := 0
	for i := range st.InitContainerStatuses {
		c := &st.InitContainerStatuses[i]
		if i == 0 || c.State.Waiting == nil || c.LastTerminationState.Terminated != nil {
			begun = i + 1
		}
	}
	closeAll(st.InitContainerStatuses[:begun])
}

func closeAll(all []corev1.ContainerStatus) {
	for i := range all {
		if c := &all[i]; c.State.Terminated == nil {
			c.State = corev1.ContainerState{Terminated: unknownEnd(podstate.MessageNotLocated)}
		}
	}
}

// wasInitialized reports whether the statuses show that the pod was initialized at some point.
func (b *builder) wasInitialized() bool {
	if !b.HasInit() {
		return true
	}
	for i := range b.st.ContainerStatuses {
		c := &b.st.ContainerStatuses[i]
		if c.State.Waiting == nil || c.LastTerminationState.Terminated != nil {
			return true
		}
	}
	last := len(b.st.InitContainerStatuses) - 1
	c := &b.st.InitContainerStatuses[last]
	if b.Slots[last].Role == podutil.RoleSidecar {
		return c.State.Running != nil && c.Started != nil && *c.Started
	}
	return initDone(endOf(c))
}

// initDone reports whether end is that of an init container that has succeeded.
func initDone(end *corev1.ContainerStateTerminated) bool {
	return end != nil && !podutil.InitFailed(end.ExitCode, end.Reason)
}
