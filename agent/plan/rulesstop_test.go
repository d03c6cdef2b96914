package plan

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// preStopping checks a preStop hook: it runs once, before the stop of its container. One that failed is tried again.
func (ru *rules) preStopping(s podstate.PreStop) {
	if ru.preStopped[s.ID] && !ru.hookFailed[s.ID] {
		ru.breaks("%s for the second time", s)
	}
	if running, stops := ru.l.memory.InFlight[podstate.StopContainer{ID: s.ID}.Key()]; stops {
		ru.breaks("%s beside %s", s, running)
	}
	ru.stopBegins(podstate.StopContainer(s))
	ru.preStopped[s.ID], ru.hookFailed[s.ID] = true, false
}

// hookFirst checks that a running container is stopped after its preStop hook, unless no time is left.
func (ru *rules) hookFirst(s podstate.StopContainer) {
	hook, runs := ru.l.memory.InFlight[podstate.PreStop{ID: s.ID}.Key()].(podstate.PreStop)
	_, stops := ru.l.memory.InFlight[s.Key()]
	i := ru.l.index(s.ID)
	switch timeLeft := ru.l.now.Before(s.Deadline); {
	case runs && timeLeft && ru.l.now.Before(hook.Deadline):
		ru.breaks("%s while %s is in progress", s, hook)
	case i < 0 || ru.l.containers[i].State != podstate.ContainerRunning || !ru.l.containers[i].PreStop:
	case timeLeft && !stops && (!ru.preStopped[s.ID] || ru.hookFailed[s.ID]):
		ru.breaks("%s before its preStop hook", s)
	}
}

// resetting checks the removal of an instance for a reset: an exit code must have requested it. The work that the
// container has done in the sandbox no longer counts.
func (ru *rules) resetting(s podstate.RemoveContainer) {
	if !ru.resetAsked {
		ru.breaks("%s for a reset that no exit code requested", s)
	}
	ru.marked(s)
	ru.forgotten[s.Name], ru.owed[s.Name] = true, true
	ru.byStop = slices.DeleteFunc(ru.byStop, func(c podstate.Container) bool { return c.ID == s.ID })
	for _, done := range []map[string]bool{ru.initDone, ru.sidecarUp} {
		maps.DeleteFunc(done, func(key string, _ bool) bool { return strings.HasSuffix(key, "/"+s.Name) })
	}
}

// marked checks that a reset stops and removes containers only while its marker file says so.
func (ru *rules) marked(s podstate.Step) {
	if mark := ru.l.resetMark; mark != podstate.ResetRemoving {
		ru.breaks("%s for a reset whose marker file says %q", s, mark)
	}
}

// stopBegins checks that there is a reason for a stop, which begins with the preStop hook, and records it.
func (ru *rules) stopBegins(s podstate.StopContainer) {
	ru.undisturbed(s)
	if s.Replaces() {
		ru.replacedForReason(s)
	}
	if _, before := ru.stopped[s.ID]; !before || s.Cause != podstate.CauseUnknown { // the cause of an earlier stop stays
		ru.stopped[s.ID] = s.Cause
	}
	switch s.Cause {
	case podstate.CauseReset:
		ru.marked(s)
	case podstate.CauseSandbox:
		ru.oneGrace(s)
	}
}

// oneGrace checks that all containers of a lost sandbox end within one grace period, unless the runtime fails to stop
// one of them, or loses one, and with it when the time began. In a pod that ends they have what the pod has.
func (ru *rules) oneGrace(s podstate.StopContainer) {
	i := ru.l.index(s.ID)
	if i < 0 {
		return
	}
	box := ru.l.containers[i].SandboxID
	until, known := ru.lostUntil[box]
	if !known {
		until = ru.mono() + podutil.GracePeriod(ru.l.desired.Pod)
		ru.lostUntil[box] = until
	}
	if late := s.Deadline.Sub(ru.l.birth) - until; late > 0 {
		ru.breaks("%s ends %s after the grace period of %s", s, late, box)
	}
}

// stopAnswered records the answer to the stop of a container.
func (ru *rules) stopAnswered(c *call) {
	s, ok := c.step.(podstate.StopContainer)
	if i := ru.l.index(s.ID); ok && c.problem != nil && i >= 0 {
		delete(ru.lostUntil, ru.l.containers[i].SandboxID)
	}
}

// stoppingOne checks that sidecars stop after the app containers and in reverse order until their time has passed, and
// that no container gets more time than the stop allows. A container that is being started counts: it may run next.
func (ru *rules) stoppingOne(s podstate.StopContainer) {
	deadline, stop := s.Deadline, ru.l.desired.Stop
	if stop == nil && s.Cause != podstate.CauseSandbox {
		return
	}
	if stop != nil {
		deadline = stop.Deadline
		if s.Deadline.After(deadline) && !podutil.IsTerminal(ru.l.desired.Pod.Status.Phase) &&
			stop.Cause != podstate.StopEvicted {
			ru.breaks("%s ends %s after the pod's stop", s, s.Deadline.Sub(deadline))
		}
	}
	if ru.roles[s.Name] != podutil.RoleSidecar || !ru.l.now.Before(deadline) {
		return
	}
	after := false
	for _, c := range ru.l.desired.Pod.Spec.InitContainers {
		if after && ru.roles[c.Name] == podutil.RoleSidecar &&
			ru.someRuns(func(o *podstate.Container) bool { return o.Name == c.Name }) != nil {
			ru.breaks("%s while the later sidecar %s runs", s, c.Name)
		}
		after = after || c.Name == s.Name
	}
	if c := ru.someRuns(func(o *podstate.Container) bool { return ru.roles[o.Name] == podutil.RoleApp }); c != nil {
		ru.breaks("%s while %s runs", s, c.ID)
	}
}

// someRuns returns a container that is alive or being started.
func (ru *rules) someRuns(in func(*podstate.Container) bool) *podstate.Container {
	for i := range ru.l.containers {
		c := &ru.l.containers[i]
		start := ru.l.memory.InFlight[podstate.StartContainer{ID: c.ID}.Key()]
		if (c.Alive() || c.State == podstate.ContainerCreated && start != nil) && in(c) {
			return c
		}
	}
	return nil
}

// result is what has to become of a pod whose stop has a reason.
type result int

const (
	// resultOpen: no plan has seen the stop.
	resultOpen result = iota
	// resultUnknown: it is not known whether the pod had completed before.
	resultUnknown
	// resultSucceeded and resultFailed: the pod had completed before.
	resultSucceeded
	resultFailed
	// resultStopped: the pod had not completed, so it fails for the reason of the stop.
	resultStopped
)

// resultKept checks that a pod that had completed before it got a stop with a reason keeps its result, and that any
// other fails for that reason. A preempted pod succeeds if its containers do.
func (ru *rules) resultKept(w *world, p *Plan) {
	stop, st := w.desired.Stop, p.Status
	if stop == nil || stop.Reason == "" {
		return
	}
	if ru.result == resultOpen {
		ru.result = ru.ownResult()
	}
	if !podutil.IsTerminal(st.Phase) || ru.saidTerminal(w) || w.desired.Rejected != nil {
		return
	}
	got := resultStopped
	switch {
	case st.Phase == corev1.PodSucceeded:
		got = resultSucceeded
	case st.Reason == "":
		got = resultFailed
	}
	preempted := stop.Reason == podutil.ReasonPreempting && ru.result == resultStopped && got == resultSucceeded
	if got != ru.result && ru.result != resultUnknown && !preempted {
		ru.breaks("the pod ends as %s %q, with the stop %q: got result %d, want %d", st.Phase, st.Reason, stop.Reason, got,
			ru.result)
	}
}

// ownResult returns what becomes of a pod if it gets a stop with a reason now. If the runtime has lost instances, or if
// an init container has failed, that is not known.
func (ru *rules) ownResult() result {
	own := resultSucceeded
	for name, role := range ru.roles {
		c := podstate.Newest(ru.l.containers, name)
		ended := c != nil && c.State == podstate.ContainerExited
		switch {
		case role == podutil.RoleSidecar && !ru.forgotten[name] || role == podutil.RoleEphemeral:
		case ru.forgotten[name] || ru.resetAsked,
			role == podutil.RoleInit && ended && (c.ExitCode != 0 || c.Reason == "OOMKilled"):
			return resultUnknown
		case role == podutil.RoleInit:
		case !ended || ru.mustRunAgain(name, c.ID, c.ExitCode):
			own = resultStopped
		case c.ExitCode != 0 && own == resultSucceeded:
			own = resultFailed
		}
	}
	return own
}
