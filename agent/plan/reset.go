package plan

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Reasons and words of a pod whose containers all start anew (KEP-5532); they are the kubelet's.
const (
	reasonResetStarted  = "RestartAllContainersStarted"
	messageResetStarted = "container exited with restart policy rule"
	// ReasonRestartingAll is the end of a container that was removed so that all of its pod could start anew.
	ReasonRestartingAll  = "RestartingAllContainers"
	messageRestartingAll = "The container is removed because RestartAllContainers in place"
)

// asksForReset: by its container's rules this instance has ended so that all containers must start anew.
func asksForReset(spec *corev1.Container, c *Container) bool {
	if c == nil || c.State != ContainerExited || c.Reason == ReasonRestartingAll {
		return false
	}
	rule := podutil.RestartRule(spec, c.ExitCode)
	return rule != nil && rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers
}

// findReset finds out whether all containers are to start anew: an exit asks for it, or what has been said of one that did.
// Instances that the runtime has lost by then went for that, as do those that a new life of the agent misses where the node
// has noted a reset.
func (v *view) findReset() {
	if !podutil.RestartsAll(&v.d.Pod.Spec) || v.d.Stop != nil || v.d.Rejected != nil || podutil.IsTerminal(v.old.Phase) {
		return
	}
	due := podutil.IsTrue(v.old, corev1.AllContainersRestarting)
	for i := range v.slots {
		if s := &v.slots[i]; s.role != podutil.RoleEphemeral && asksForReset(s.spec, s.last) {
			due, v.resetAsked = true, v.resetAsked || !s.lost
		}
	}
	gone := due || v.o.ResetNoted && v.o.Memory.Told == nil
	for i := range v.slots {
		if s := &v.slots[i]; gone && s.lost && s.role != podutil.RoleEphemeral && !alreadyReset(s.shown) {
			s.reset = true
			s.last.ExitCode, s.last.Reason, s.last.Message = exitUnknown, ReasonRestartingAll, messageRestartingAll
		}
	}
	v.resetting = due && slices.ContainsFunc(v.o.Containers, func(c Container) bool { return v.resets(&c) != nil })
}

// alreadyReset: the status says of the container that it waits to start anew, or that it never ran. Not one whose last instance ended
// in another way: that waits for the start of the next one, which a reset takes away.
func alreadyReset(shown *corev1.ContainerStatus) bool {
	ended := shown.LastTerminationState.Terminated
	return shown.State.Waiting != nil && shown.ContainerID == "" && (ended == nil || ended.Reason == ReasonRestartingAll)
}

// resets is the spec of the container that an instance must make room for, nil where it has no part in it. Where no exit asks
// any more, an instance that is newer than the status has come after the reset.
func (v *view) resets(c *Container) *corev1.Container {
	for i := range v.slots {
		s := &v.slots[i]
		if s.spec.Name != c.Name || s.role == podutil.RoleEphemeral {
			continue
		}
		if !v.resetAsked && s.shown != nil && (c.Attempt > uint32(s.shown.RestartCount) || alreadyReset(s.shown)) {
			return nil
		}
		return s.spec
	}
	return nil
}

// reset removes all instances of all containers, those that asked for it last: while one of them is there, a later life of
// the agent finds out what is going on. Before they go the node notes it.
func (v *view) reset(p *Plan) {
	waiting := v.giveUpContainers(p)
	var sources []RemoveContainer
	for i := range v.o.Containers {
		c := &v.o.Containers[i]
		spec := v.resets(c)
		if spec == nil {
			continue
		}
		remove := RemoveContainer{ID: c.ID, Name: c.Name, KeepLog: true}
		switch {
		case !alive(c) && v.inFlight(StartContainer{ID: c.ID}): // it is not removed while it may come up
		case alive(c):
			v.step(p, StopContainer{ID: c.ID, Name: c.Name, Deadline: v.o.Now, Cause: CauseReset, Reason: "Container " + c.Name +
				" will be restarted with all containers of the pod"})
			waiting = true
		case asksForReset(spec, c):
			sources = append(sources, remove)
		default:
			v.step(p, remove)
			waiting = true
		}
	}
	if waiting || !v.o.Memory.Prepared { // the note stands in the pod's directory
		return
	}
	if !v.o.ResetNoted {
		v.step(p, NoteReset{})
		return
	}
	for _, remove := range sources {
		v.step(p, remove)
	}
}

// forgetReset takes the note of a reset away once nobody can be misled without it.
func (v *view) forgetReset(p *Plan) {
	if v.o.ResetNoted && !slices.ContainsFunc(v.slots, v.resetUntold) {
		v.step(p, NoteReset{Over: true})
	}
}

// resetUntold: the API is not known to have heard that a container has gone for a reset, and its next instance has not started.
func (v *view) resetUntold(s slot) bool {
	if s.role == podutil.RoleEphemeral || slices.ContainsFunc(v.o.Containers, func(c Container) bool {
		return c.Name == s.spec.Name && c.State != ContainerCreated
	}) {
		return false
	}
	if s.reset || v.o.Memory.Told == nil {
		return true
	}
	told, api := podutil.ContainerStatus(v.o.Memory.Told, s.spec.Name), podutil.ContainerStatus(&v.d.Pod.Status, s.spec.Name)
	return told == nil || api == nil || api.RestartCount < told.RestartCount
}

// giveUpContainers cancels the steps in flight that make containers, and waits for those that start them; what they come to
// must be seen first.
func (v *view) giveUpContainers(p *Plan) (waiting bool) {
	for _, key := range slices.SortedFunc(maps.Keys(v.o.Memory.InFlight), Key.Compare) {
		step := v.o.Memory.InFlight[key]
		switch step.(type) {
		case StartContainer:
			v.awaits(p, step)
			waiting = true
		case CreateContainer, PostStart:
			p.Cancel = append(p.Cancel, key)
			p.Waits = append(p.Waits, Wait{For: step.String(), Why: "being given up"})
			waiting = true
		}
	}
	return waiting
}

// restartingAll is the condition of a pod whose containers may all start anew.
func (v *view) restartingAll(phase corev1.PodPhase) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.AllContainersRestarting, Status: corev1.ConditionFalse}
	switch {
	case phase == corev1.PodSucceeded:
		c.Reason = reasonPodCompleted
	case phase == corev1.PodFailed:
		c.Reason = reasonPodFailed
	case v.resetting:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, reasonResetStarted, messageResetStarted
	}
	return c
}

// removedForReset fills in the status of a container whose instances are gone so that it can start anew.
func removedForReset(st *corev1.ContainerStatus, old *corev1.ContainerStatus) {
	st.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: ReasonRestartingAll, Message: messageRestartingAll}}
	st.LastTerminationState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Reason: ReasonRestartingAll, Message: messageRestartingAll, ExitCode: exitUnknown}}
	st.RestartCount = old.RestartCount + 1
}
