package podstatus

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// explainWaiting sets the waiting reason of a container that should run but cannot run yet.
func (b *builder) explainWaiting(st *corev1.ContainerStatus, slot *podstate.Slot) {
	reason, message := b.waitingReason(slot)
	if reason == "" {
		return
	}
	if st.State.Terminated != nil {
		st.LastTerminationState = st.State
	}
	st.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// waitingReason returns why a container that should run does not run; empty if nothing has failed.
func (b *builder) waitingReason(slot *podstate.Slot) (reason, message string) {
	if b.Ending != nil || b.Resetting || b.Pod.DeletionTimestamp != nil {
		return "", ""
	}
	if slot.Last != nil {
		switch slot.Last.State {
		case podstate.ContainerRunning:
			return b.hookFailure(slot)
		case podstate.ContainerUnknown:
			return "", ""
		case podstate.ContainerExited:
			if slot.Role == podutil.RoleInit && (slot.Passed || !slot.InitIncomplete()) ||
				!slot.Restarts() && !slot.Followed() {
				return "", ""
			}
		}
		if backingOff(slot) && b.Now.Before(slot.RestartAt()) {
			return podutil.ReasonCrashLoopBackOff, slot.BackoffMessage()
		}
	}
	reason, message = b.failure(slot)
	switch {
	case reason != "" || slot.Last == nil:
	case backingOff(slot) && !slot.Vanished:
		return podutil.ReasonCrashLoopBackOff, slot.BackoffMessage()
	case slot.Last.State == podstate.ContainerExited && (slot.StoppedToRestart() || !slot.Restarts() ||
		slot.Role == podutil.RoleInit && slot.Last.ExitCode == 0):
		// It must not be shown as terminated: its restart policy may forbid that a terminated container runs again.
		return b.notStarted(), ""
	}
	return reason, message
}

// backingOff reports whether the next instance has, or had, to wait for a crash-loop back-off.
func backingOff(slot *podstate.Slot) bool {
	return slot.Last.State == podstate.ContainerExited && slot.RestartDelay() > 0
}

func (b *builder) hookFailure(slot *podstate.Slot) (reason, message string) {
	if h := b.Memory.Instance(slot.Last.ID).Hook; h.Failure != "" {
		return podutil.ReasonPostStartHook, h.Failure
	}
	return "", ""
}

// failure returns the last failure of a step that the next instance needs.
func (b *builder) failure(slot *podstate.Slot) (reason, message string) {
	if last := slot.Last; last != nil {
		if f, failed := b.Memory.Failure(podstate.StartContainer{ID: last.ID}.Key()); failed {
			return f.Reason, f.Message
		}
		switch last.State {
		case podstate.ContainerCreated:
			f, _ := b.Memory.Unstarted(slot.Spec.Name)
			return f.Reason, f.Message
		case podstate.ContainerExited:
			if reason, message = b.hookFailure(slot); reason != "" {
				return reason, message
			}
		}
	}
	creation, notCreated := b.Memory.Failure(podstate.CreateContainer{Name: slot.Spec.Name}.Key())
	image, noImage := b.Memory.FailedImage(b.Pod, slot.Spec)
	switch {
	case noImage && !creation.At.After(image.At): // after a failed creation the image is ensured again
		return imageFailure(image)
	case notCreated:
		return creation.Reason, creation.Message
	}
	return "", ""
}

// imageFailure returns the reason for a failed pull: for the first failure its own reason, then ImagePullBackOff.
func imageFailure(f podstate.Failure) (reason, message string) {
	switch f.Reason {
	case podutil.ReasonErrImageNeverPull, podutil.ReasonInvalidImageName, podutil.ReasonImageInspect:
		return f.Reason, f.Message
	}
	if f.Count < 2 {
		return f.Reason, f.Message
	}
	message = fmt.Sprintf("Back-off pulling image %q: %s: %s", f.Image, f.Reason, f.Message)
	return podutil.ReasonImagePullBackOff, message
}
