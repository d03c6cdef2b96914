package plan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// planned checks a new plan: its status must be true, and it must lead to progress.
func (ru *rules) planned(w *world, p *Plan) {
	ru.sidecarsUp(w)
	ru.sandboxSeen(w)
	ru.statusTrue(w, p)
	ru.resultKept(w, p)
	ru.resourcesTrue(w, p)
	ru.neverBack(w, p)
	ru.freed(w, p)
	ru.reclaimed(p)
	ru.goesOn(w, p)
	for i, s := range p.Steps {
		key := s.Key()
		if slices.ContainsFunc(p.Steps[:i], func(other podstate.Step) bool { return other.Key() == key }) {
			ru.breaks("two steps with the key %q in one plan", key)
		}
	}
}

// sidecarsUp records which sidecars have started: they run, and their hook and startup probe have succeeded.
func (ru *rules) sidecarsUp(w *world) {
	for i := range w.containers {
		c := &w.containers[i]
		spec := ru.specs[c.Name]
		if ru.roles[c.Name] != podutil.RoleSidecar || c.State != podstate.ContainerRunning || !ru.hookThrough(c, spec) {
			continue
		}
		if spec.StartupProbe == nil || w.probed[c.ID].Startup == podstate.ProbeSuccess {
			ru.sidecarUp[c.SandboxID+"/"+c.Name] = true
		}
	}
}

func (ru *rules) hookThrough(c *podstate.Container, spec *corev1.Container) bool {
	return spec.Lifecycle == nil || spec.Lifecycle.PostStart == nil || ru.hooked[c.ID] || ru.unhooked[c.ID]
}

// statusTrue checks that a container reported as ready is ready, and that nothing runs in a pod with a terminal phase.
func (ru *rules) statusTrue(w *world, p *Plan) {
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, st := range list {
			c, spec := podstate.Newest(w.containers, st.Name), ru.specs[st.Name]
			if st.Ready && ru.roles[st.Name] != podutil.RoleInit && (c == nil || c.State != podstate.ContainerRunning) {
				ru.breaks("%s is reported as ready but does not run", st.Name)
				return
			}
			if st.Ready && ru.roles[st.Name] != podutil.RoleInit && !ru.hookThrough(c, spec) {
				ru.breaks("%s is reported as ready before its postStart hook has succeeded", c.ID)
			}
		}
	}
	if !podutil.IsTerminal(p.Status.Phase) || ru.saidTerminal(w) {
		return
	}
	if p.Status.Reason == podutil.ReasonDeadlineExceeded && !ru.pastDeadline() {
		ru.breaks("the pod is reported as %s before its deadline", p.Status.Reason)
	}
	if p.Status.Reason == podutil.ReasonDeadlineExceeded && ru.completedInTime(p.Status.StartTime.Time) {
		ru.breaks("the pod is reported as %s, but it had completed before its deadline", p.Status.Reason)
	}
	if c := ru.someAlive(func(*podstate.Container) bool { return true }); c != nil {
		ru.breaks("the pod is reported as %s while %s runs", p.Status.Phase, c.ID)
	}
	if w.claims {
		ru.breaks("the pod is reported as %s while its resource claims are prepared", p.Status.Phase)
	}
	for _, box := range w.sandboxes {
		if box.Ready {
			ru.breaks("the pod is reported as %s while %s is ready", p.Status.Phase, box.ID)
		}
	}
}

// completedInTime reports whether the pod had completed before its deadline, which counts from start.
func (ru *rules) completedInTime(start time.Time) bool {
	if own := ru.ownResult(); own != resultSucceeded && own != resultFailed {
		return false
	}
	deadline := start.Add(time.Duration(*ru.l.desired.Pod.Spec.ActiveDeadlineSeconds) * time.Second)
	for name, role := range ru.roles {
		c := podstate.Newest(ru.l.containers, name)
		if (role == podutil.RoleInit || role == podutil.RoleApp) && c != nil && !c.FinishedAt.Before(deadline) {
			return false
		}
	}
	return true
}

// saidTerminal reports whether a terminal phase was published before.
func (ru *rules) saidTerminal(w *world) bool {
	return w.memory.Reported != nil && podutil.IsTerminal(w.memory.Reported.Phase) ||
		podutil.IsTerminal(w.desired.Pod.Status.Phase)
}

// neverBack checks that a terminal phase does not change, and that restart counts only grow. What a mirror pod shows
// does not count if the static pod has ended before it came.
func (ru *rules) neverBack(w *world, p *Plan) {
	own := w.memory.Reported
	for _, before := range []*corev1.PodStatus{&w.desired.Pod.Status, own} {
		if before == nil || before != own && w.mirror != nil && own != nil && podutil.IsTerminal(own.Phase) {
			continue
		}
		if podutil.IsTerminal(before.Phase) && (p.Status.Phase != before.Phase || p.Status.Reason != before.Reason) {
			ru.breaks("the pod was reported as %s %s and is now reported as %s %s", before.Phase, before.Reason, p.Status.Phase,
				p.Status.Reason)
		}
		if before.StartTime != nil && !before.StartTime.Equal(p.Status.StartTime) && w.memory.Reported != nil {
			ru.breaks("the start time moves from %s to %s", before.StartTime, p.Status.StartTime)
		}
		for _, old := range before.ContainerStatuses {
			now := podutil.StatusIn(p.Status.ContainerStatuses, old.Name)
			if now != nil && now.RestartCount < old.RestartCount {
				ru.breaks("the restart count of %s falls from %d to %d", old.Name, old.RestartCount, now.RestartCount)
			}
			if now != nil && podutil.IsTerminal(before.Phase) && old.State.Terminated != nil && now.State.Terminated == nil {
				ru.breaks("%s was reported as terminated, but is not any more", old.Name)
			}
		}
	}
}

// freed checks that a released pod holds nothing any more, and that nothing of a pod is left when the plan is done.
func (ru *rules) freed(w *world, p *Plan) {
	if p.Done && !p.Released {
		ru.breaks("done and not released")
	}
	if p.Done && len(p.Steps) > 0 { // the worker ends, and their results are lost
		ru.breaks("done with steps to take: %+v", p.Steps)
	}
	if !p.Released {
		return
	}
	if c := ru.someAlive(func(*podstate.Container) bool { return true }); c != nil {
		ru.breaks("released while %s runs", c.ID)
	}
	for _, box := range w.sandboxes {
		if box.Ready || w.network[box.ID] {
			ru.breaks("released while %s holds the network", box.ID)
		}
	}
	for name := range w.volumes {
		ru.breaks("released with volume %s on the disk", name)
	}
	if w.claims {
		ru.breaks("released with resource claims prepared")
	}
	if w.cgroup {
		ru.breaks("released with a cgroup")
	}
	if !podutil.IsTerminal(p.Status.Phase) && !podutil.IsStatic(w.desired.Pod) {
		ru.breaks("released in phase %s", p.Status.Phase)
	}
	if p.Done {
		ru.checkTraces("done")
	}
}

// checkTraces checks that nothing of the pod is left; of one that returns, nothing but what could not be removed, with
// the directory.
func (ru *rules) checkTraces(when string) {
	l := ru.l
	failed := func(s podstate.Step) bool { _, failed := l.memory.Failures[s.Key()]; return failed }
	boxes := slicesCount(l.sandboxes, func(b podstate.Sandbox) bool { return !failed(podstate.RemoveSandbox{ID: b.ID}) })
	containers := slicesCount(l.containers,
		func(c podstate.Container) bool { return !failed(podstate.RemoveContainer{ID: c.ID}) })
	dir := l.dir && len(l.sandboxes) == boxes && len(l.containers) == containers
	if !l.desired.Returns {
		boxes, containers = len(l.sandboxes), len(l.containers)
		dir = l.dir
	}
	if boxes > 0 || containers > 0 || dir {
		ru.breaks("%s with %d sandboxes, %d containers, directory %v", when, boxes, containers, dir)
	}
}

// goesOn checks that a plan leads to progress: to steps, to the end of steps in flight, or to a wake-up time in the
// future. Only missing devices are waited for without one of these.
func (ru *rules) goesOn(w *world, p *Plan) {
	if !p.Wake.IsZero() && !p.Wake.After(w.now) {
		ru.breaks("the plan sets a wake-up time that is now: waits %v", p.Waits)
	}
	inFlight := slicesCount(w.calls, func(c *call) bool { return !c.ghost })
	if len(p.Steps) == 0 && inFlight == 0 && p.Wake.IsZero() {
		switch {
		case len(p.Waits) == 0:
			ru.checkRest()
		case w.desired.DevicesMissing == "" && ru.someAlive(func(*podstate.Container) bool { return true }) == nil:
			ru.breaks("nothing is in flight, but the pod waits: %+v", p.Waits)
		}
	}
	for _, wait := range p.Waits {
		if wait.For == nil || wait.Why == "" {
			ru.breaks("a wait without an object or a reason: %+v", wait)
		}
	}
}

func slicesCount[T any](all []T, is func(T) bool) (n int) {
	for _, one := range all {
		if is(one) {
			n++
		}
	}
	return n
}

// checkRest checks the stable state: the pod must be in the state that it should have.
func (ru *rules) checkRest() {
	l := ru.l
	if len(l.plan.Steps) > 0 {
		ru.breaks("at rest with steps %v", l.plan.Steps)
	}
	ru.reclaimedAtRest()
	if ru.stopping() {
		if !l.plan.Released {
			ru.breaks("at rest, and a pod that must end is not released; waits %v", l.plan.Waits)
		}
		return
	}
	if l.plan.Released {
		ru.mayEnd()
		return
	}
	if len(l.sandboxes) == 0 || !l.usable(&l.sandboxes[len(l.sandboxes)-1]) {
		ru.breaks("at rest without a sandbox")
		return
	}
	ru.fewSandboxes(l.world, &l.plan)
	if ru.pastDeadline() {
		ru.breaks("at rest, and the pod still runs after its deadline")
	}
	for name, role := range ru.roles {
		ru.whereItBelongs(name, role)
	}
	ru.resizedAtRest()
	if phase := l.plan.Status.Phase; phase != corev1.PodRunning {
		ru.breaks("at rest, and reported as %s", phase)
	}
}

// pastDeadline reports whether the deadline in the spec has passed, counted from the start time in the status.
func (ru *rules) pastDeadline() bool {
	limit, start := ru.l.desired.Pod.Spec.ActiveDeadlineSeconds, ru.l.plan.Status.StartTime
	return limit != nil && start != nil && ru.l.now.Sub(start.Time) >= time.Duration(*limit)*time.Second
}

// mayEnd checks a pod that has ended by itself: all its containers have completed, or it cannot be initialized, because
// an init container has failed, or because nobody knows how it ended.
func (ru *rules) mayEnd() {
	if ru.pastDeadline() {
		return
	}
	for name, role := range ru.roles {
		last := ru.last[name]
		failed := last != nil && last.ended && (last.code != 0 || last.starved) && !ru.mayRunAgain(name, last.code) &&
			(!last.starved || ru.policy(name) == corev1.RestartPolicyNever)
		lost := last != nil && podstate.Newest(ru.l.containers, name) == nil && !ru.mayRunAgain(name, podstate.ExitUnknown)
		if role == podutil.RoleInit && !ru.owed[name] && (failed || lost) {
			return
		}
	}
	for name := range ru.owed {
		ru.breaks("the pod has ended, and %s, which was removed for a reset, has not started again", name)
	}
	for name, role := range ru.roles {
		if role == podutil.RoleInit && ru.forgotten[name] {
			return
		}
	}
	for name, role := range ru.roles {
		last := ru.last[name]
		if role == podutil.RoleApp && !ru.forgotten[name] &&
			(last == nil || !last.ended || ru.mustRunAgain(name, last.id, last.code)) {
			ru.breaks("the pod has ended, and %s has not", name)
		}
	}
}

// whereItBelongs checks that a container at rest runs with its current spec, or has ended and does not restart.
func (ru *rules) whereItBelongs(name string, role podutil.Role) {
	l := ru.l
	c := podstate.Newest(l.containers, name)
	switch {
	case ru.owed[name]:
		ru.breaks("at rest, and %s, which was removed for a reset, has not started again", name)
	case c == nil && (role == podutil.RoleInit || role == podutil.RoleEphemeral || ru.forgotten[name]):
	case c == nil:
		ru.breaks("at rest, and %s was never created", name)
	case c.State == podstate.ContainerRunning:
		if c.SandboxID != l.sandboxes[len(l.sandboxes)-1].ID {
			ru.breaks("at rest, and %s runs in an old sandbox", c.ID)
		}
		if want := l.desired.Hashes[name]; role != podutil.RoleInit && role != podutil.RoleEphemeral && c.Hash != want {
			ru.breaks("at rest, and %s runs as %s, not as %s", c.ID, c.Hash, want)
		}
		if v := l.probed[c.ID]; v.Startup == podstate.ProbeFailure || v.Liveness == podstate.ProbeFailure {
			ru.breaks("at rest, and %s runs although a probe fails", c.ID)
		}
		if spec := ru.specs[name]; role == podutil.RoleApp && !ru.hookThrough(c, spec) {
			ru.breaks("at rest, and the postStart hook of %s has not succeeded", c.ID)
		}
	case role == podutil.RoleEphemeral && c.State == podstate.ContainerUnknown &&
		c.SandboxID == l.sandboxes[len(l.sandboxes)-1].ID: // it may run, and is left alone
	case c.State != podstate.ContainerExited:
		ru.breaks("at rest, and %s is in state %d", c.ID, c.State)
	case role == podutil.RoleSidecar || role == podutil.RoleApp && ru.mustRunAgain(name, c.ID, c.ExitCode) &&
		c.Reason != "StartError":
		ru.breaks("at rest, and %s, which exited with %d, does not run", c.ID, c.ExitCode)
	}
}

// checkGone checks the end of a run. Calls of killed agents may still leave something behind, which a new worker for
// the orphan removes.
func (ru *rules) checkGone() {
	if slicesCount(ru.l.calls, func(c *call) bool { return c.ghost }) == 0 {
		ru.checkTraces("gone")
	}
}

// mayRunAgain implements the restart policy as Kubernetes documents it.
func (ru *rules) mayRunAgain(name string, code int32) bool {
	c, policy := ru.specs[name], ru.policy(name)
	if ru.roles[name] == podutil.RoleEphemeral {
		return false
	}
	for _, rule := range c.RestartPolicyRules {
		in := slices.Contains(rule.ExitCodes.Values, code)
		if in == (rule.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
			return true
		}
	}
	if policy == corev1.RestartPolicyAlways && ru.roles[name] != podutil.RoleInit {
		return true
	}
	return policy != corev1.RestartPolicyNever && code != 0
}

// policy returns the restart policy of a container: its own or that of the pod.
func (ru *rules) policy(name string) corev1.RestartPolicy {
	if own := ru.specs[name].RestartPolicy; own != nil {
		return corev1.RestartPolicy(*own)
	}
	return ru.l.desired.Pod.Spec.RestartPolicy
}

// mustRunAgain reports whether an instance that has exited with code is followed by another.
func (ru *rules) mustRunAgain(name, id string, code int32) bool {
	return ru.mayRunAgain(name, code) || ru.cutOff(name, id)
}

// replaced reports whether the agent has stopped an instance because of a new spec or a resize.
func (ru *rules) replaced(id string) bool {
	return ru.stopped[id] == podstate.CauseSpec || ru.stopped[id] == podstate.CauseResize
}

// cutOff reports whether the agent has stopped an instance whose work is not done, so that another follows whatever its
// exit code: it was replaced, or, unless its restart policy is Never, a probe has failed, its sandbox was lost, or its
// state was not known.
func (ru *rules) cutOff(name, id string) bool {
	switch ru.stopped[id] {
	case podstate.CauseProbe, podstate.CauseSandbox, podstate.CauseUnknown:
		return ru.roles[name] != podutil.RoleEphemeral && ru.policy(name) != corev1.RestartPolicyNever
	}
	return ru.replaced(id)
}
