package plan

import (
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

func (l *simRun) within(d time.Duration) time.Duration {
	return time.Duration(l.r.Int64N(int64(d)) + 1)
}

func (l *simRun) plannedFault() { l.faultAt = l.now.Add(l.within(l.every)) }

// took is how long a step usually takes, at most.
func took(s podstate.Step) time.Duration {
	switch s.(type) {
	case podstate.EnsureImage:
		return 20 * time.Second
	case podstate.CreateSandbox, podstate.PrepareClaims, podstate.UnprepareClaims, podstate.Mount, podstate.PostStart,
		podstate.PreStop:
		return 3 * time.Second
	}
	return 200 * time.Millisecond
}

// fate decides how a call will go.
func (l *simRun) fate(c *call) {
	d := l.within(took(c.step))
	c.effectAt = l.now.Add(d)
	c.endAt = c.effectAt.Add(l.within(50 * time.Millisecond))
	if stop, ok := c.step.(podstate.StopContainer); ok {
		l.stopFate(c, stop)
	}
	if l.stage != stageFaults {
		return
	}
	switch l.r.IntN(40) {
	case 0, 1, 2: // fails
		c.problem = &podstate.Problem{Message: "it failed"}
		if _, start := c.step.(podstate.StartContainer); start && l.removesFailed {
			c.failsToStart = true
		} else {
			c.effectAt = time.Time{}
		}
		switch c.step.(type) {
		case podstate.EnsureImage:
			c.problem.Reason = pick(l.r, podutil.ReasonErrImagePull, podutil.ReasonErrImageNeverPull)
			c.problem.Lacks = c.problem.Reason == podutil.ReasonErrImagePull
		case podstate.PostStart:
			c.problem.Reason = podutil.ReasonPostStartHook // otherwise it has not run
		}
	case 3, 4: // the work is done, the answer is lost
		c.problem = &podstate.Problem{Message: "no answer in time"}
	case 5: // the work is done long after the answer was lost
		c.problem = &podstate.Problem{Message: "no answer in time"}
		c.effectAt = c.endAt.Add(l.within(time.Minute))
	case 6: // slow
		c.effectAt = c.effectAt.Add(l.within(5 * time.Minute))
		c.endAt = c.effectAt
	case 7: // reports success without an effect
		if !believed(c.step) {
			c.effectAt = time.Time{}
		}
	}
	if setsSize(c.step) || writesRecord(c.step) {
		l.resizeFate(c)
	}
	l.sandboxFate(c)
}

// believed reports whether the agent does not look for the effect of a step that has succeeded: what a dead sandbox
// still holds is not observable, and what was removed does not count as there any more.
func believed(s podstate.Step) bool {
	switch s.(type) {
	case podstate.StopSandbox, podstate.RemoveContainer, podstate.RemoveSandbox:
		return true
	}
	return false
}

// writesRecord reports whether the agent itself writes a record on the disk, before its answer or never: that of the
// pod's resource claims, or the marker file of a reset.
func writesRecord(s podstate.Step) bool {
	switch s.(type) {
	case podstate.PrepareClaims, podstate.UnprepareClaims, podstate.MarkReset:
		return true
	}
	return false
}

// stopFate: the container ends by itself, or is killed at its deadline.
func (l *simRun) stopFate(c *call, stop podstate.StopContainer) {
	until := max(0, stop.Deadline.Sub(l.now))
	c.effectAt = l.now.Add(until)
	if until > 0 && !chance(l.r, 5) {
		c.effectAt = l.now.Add(min(l.within(3*time.Second), until))
	}
	c.endAt = c.effectAt.Add(l.within(50 * time.Millisecond))
}

// act applies the effect of a call.
func (l *simRun) act(c *call) {
	if s, stop := c.step.(podstate.StopContainer); stop {
		code := l.stopCode(s.Name, pick[int32](l.r, 0, 143))
		l.note("%s stops with %d", s.ID, code)
		l.exit(s.ID, code)
	}
	if remove, ok := c.step.(podstate.RemoveContainer); ok && c.unstarted {
		l.removesUnseen(remove)
	}
	problem := l.effect(c)
	l.sandboxMade(c)
	if c.problem == nil {
		c.problem = problem
	}
	if s, ok := c.step.(podstate.Unmount); ok && c.ghost {
		l.unmounted[s.Volume] = true
	}
	if c.ghost {
		l.note("late: %s: %v", c.step, problem)
		c.endAt = l.now
	}
}

// stopCode returns the exit code of a container that is stopped, which is code in most runs. In one of four it is one
// that requests a reset, if the container has such a rule. The choice is as that of shortOfDisk.
func (l *simRun) stopCode(name string, code int32) int32 {
	if codes := l.resetCodes(name); len(codes) > 0 && code != 0 && l.seed%4 == 1 {
		return codes[0]
	}
	return code
}

// removesUnseen notes the removal of a container that was started, for an agent that was killed before, and has ended
// since its removal began. If no agent was running meanwhile, no trace of its run is left.
func (l *simRun) removesUnseen(s podstate.RemoveContainer) {
	if i := l.index(s.ID); i >= 0 && l.containers[i].State == podstate.ContainerExited {
		l.lost(s.Name)
	}
}

// lost notes that the runtime has no record of an instance any more.
func (l *simRun) lost(name string) {
	l.forgotten[name] = true
	clear(l.lostUntil)
	if last := l.last[name]; last != nil {
		last.finishedAt = time.Time{}
	}
	if l.now.Before(l.down) {
		l.traceless()
	}
}

// answer delivers a call's answer to the agent. A call whose effect is still pending continues as a ghost.
func (l *simRun) answer(c *call) {
	if c.ghost {
		l.finish(c, time.Time{})
		return
	}
	l.note("answer to %s: %+v", c.step, c.problem)
	var refresh time.Time
	if _, mount := c.step.(podstate.Mount); mount && l.stage == stageFaults && chance(l.r, 3) {
		refresh = l.now.Add(l.within(10 * time.Minute))
	}
	l.answered(c)
	l.finish(c, refresh)
	if hook, ok := c.step.(podstate.PostStart); ok && c.problem == nil {
		l.hooked[hook.ID] = true
	}
	if !c.done && !c.effectAt.IsZero() {
		ghost := *c
		ghost.ghost, ghost.problem = true, nil
		ghost.endAt = c.effectAt
		l.calls = append(l.calls, &ghost)
	}
}

// cancelled ends a cancelled call soon. It may still have its effect.
func (l *simRun) cancelled(c *call) {
	end := l.now.Add(l.within(100 * time.Millisecond))
	if c.endAt.After(end) {
		c.endAt, c.problem = end, &podstate.Problem{Message: "cancelled", Cancelled: true}
		if c.effectAt.After(end) && (writesRecord(c.step) || !chance(l.r, 4)) {
			c.effectAt = time.Time{}
		}
	}
}

// willExit decides how long a container that has been started runs, and what it exits with.
func (l *simRun) willExit(c *podstate.Container) {
	if l.specs[c.Name] == nil {
		return
	}
	role := l.roles[c.Name]
	if l.stage != stageFaults {
		switch {
		case role == podutil.RoleInit:
			l.exits = append(l.exits, timedExit{l.now.Add(l.within(5 * time.Second)), c.ID, 0})
		case role == podutil.RoleApp && !l.mayRunAgain(c.Name, 0) && chance(l.r, 2):
			l.exits = append(l.exits, timedExit{l.now.Add(l.within(time.Minute)), c.ID, 0})
		}
		return
	}
	switch l.r.IntN(4) {
	case 0:
		l.exits = append(l.exits, timedExit{l.now.Add(l.within(time.Second)), c.ID, int32(l.r.IntN(3))})
	case 1:
		l.exits = append(l.exits, timedExit{l.now.Add(l.within(20 * time.Minute)), c.ID, int32(l.r.IntN(3))})
	default:
		if role == podutil.RoleInit {
			l.exits = append(l.exits, timedExit{l.now.Add(l.within(10 * time.Second)), c.ID, 0})
		}
	}
}

// probeSoon schedules probe results for a container.
func (l *simRun) probeSoon(id string) {
	if l.probing[id] {
		return
	}
	l.probing[id] = true
	good := podstate.ProbeResults{
		Startup:   podstate.ProbeSuccess,
		Liveness:  podstate.ProbeSuccess,
		Readiness: podstate.ProbeSuccess,
	}
	if l.stage == stageFaults {
		bad := good
		*pick(l.r, &bad.Startup, &bad.Liveness, &bad.Readiness) = podstate.ProbeFailure
		l.probes = append(l.probes, timedProbes{l.now.Add(l.within(10 * time.Second)), id, pick(l.r, good, good, good, bad)})
		if chance(l.r, 4) {
			l.probes = append(l.probes, timedProbes{l.now.Add(l.within(5 * time.Minute)), id, pick(l.r, good, bad)})
		}
		return
	}
	l.probes = append(l.probes, timedProbes{l.now.Add(l.within(10 * time.Second)), id, good})
}

// fault makes one random fault.
func (l *simRun) fault() {
	l.tally.faults++
	l.freeDisk()
	if l.killNext {
		l.killNext = false
		l.crashAgent()
		return
	}
	if l.reboots() {
		return
	}
	switch l.r.IntN(16) {
	case 0, 1, 2:
		l.crashAgent()
	case 3, 4:
		l.sandboxDies()
	case 5:
		l.anyContainer("is forgotten by the runtime", func(c *podstate.Container) {
			name := c.Name
			l.forget(c.ID)
			l.lost(name)
		})
	case 6:
		l.anyContainer("is in an unknown state", func(c *podstate.Container) {
			if c.State == podstate.ContainerRunning {
				c.State = podstate.ContainerUnknown
			}
		})
	case 7, 8:
		l.anyContainer("crashes", func(c *podstate.Container) { l.exit(c.ID, int32(l.r.IntN(3))) })
	case 9:
		l.jump(pick[time.Duration](l.r, -1, 1) * l.within(time.Hour))
	case 10:
		l.newSpec()
	case 11:
		l.note("objects change")
		l.memory.Stale()
		maps.DeleteFunc(l.failed, func(key podstate.Key, _ failedAt) bool {
			return key.Kind != podstate.KindEnsureImage && key.Kind != podstate.KindEnsureVolumeImage
		})
		for _, c := range l.calls {
			c.late = true
		}
	case 12:
		l.apiBehind = !l.apiBehind
		l.note("API behind: %v", l.apiBehind)
	case 13:
		l.requestResize()
	default:
		l.endSomehow()
	}
}

// troubleInReset makes a container exit with a reset while the API is not reachable and the agent is killed soon. By
// chance alone this combination would occur in too few runs.
func (l *simRun) troubleInReset(c *podstate.Container) {
	asks := slices.Contains(l.resetCodes(c.Name), c.ExitCode)
	if l.stage == stageFaults && asks && chance(l.r, 2) {
		l.note("API behind")
		l.apiBehind, l.killNext = true, true
		l.faultAt = l.now.Add(l.within(2 * time.Second))
	}
}

// endSomehow stops the pod or makes its stop stricter. In most runs it does nothing.
func (l *simRun) endSomehow() {
	switch l.r.IntN(8) {
	case 0:
		l.deletePod(pick(l.r, 0, time.Second, 30*time.Second))
	case 1:
		l.evict()
	case 2:
		if chance(l.r, 3) {
			l.orphan()
		}
	default:
		if l.desired.Stop != nil {
			l.deletePod(pick(l.r, 0, time.Second))
		}
	}
}

// evict evicts the pod, unless it is stopped already. A static pod would start again.
func (l *simRun) evict() {
	if podutil.IsStatic(l.desired.Pod) || l.desired.Stop != nil {
		return
	}
	reason, message := l.evictedFor()
	l.note("evicted")
	l.stop(&podstate.Stop{
		Cause:    podstate.StopEvicted,
		Deadline: l.now.Add(l.within(time.Minute)),
		Reason:   reason,
		Message:  message,
		New:      true,
	})
}

// troubleAtEnd evicts a pod that has just completed, and may let the agent be killed soon, in a run in which stops are
// recorded. By chance alone this would occur in too few runs.
func (l *simRun) troubleAtEnd() {
	own := l.ownResult()
	if l.stage == stageFaults && l.recordsStops() && (own == resultSucceeded || own == resultFailed) && chance(l.r, 2) {
		l.evict()
		l.killNext = chance(l.r, 2)
		l.faultAt = l.now.Add(l.within(2 * time.Second))
	}
}

func (l *simRun) stop(s *podstate.Stop) { l.desired.Stop = l.desired.Stop.Stricter(s) }

// deletePod deletes the pod through the API, or again with another grace.
func (l *simRun) deletePod(grace time.Duration) {
	if podutil.IsStatic(l.desired.Pod) {
		return
	}
	l.note("deleted with a grace of %s", grace)
	next := *l.desired.Pod
	at, seconds := metav1.NewTime(l.now), int64(grace/time.Second)
	next.DeletionTimestamp, next.DeletionGracePeriodSeconds = &at, &seconds
	l.desired.Pod = &next
	l.stop(&podstate.Stop{Cause: podstate.StopDeleted, Deadline: l.now.Add(grace)})
}

func (l *simRun) orphan() {
	l.note("no source has the pod any more")
	l.desired.Returns = l.seed%3 == 1
	l.stop(&podstate.Stop{Cause: podstate.StopOrphaned, Deadline: l.now.Add(podutil.GracePeriod(l.desired.Pod))})
}

// crashAgent kills the agent and starts it again, at once or later. Its memory is lost.
func (l *simRun) crashAgent() {
	l.tally.kills++
	l.statusLost()
	l.loseDevices()
	l.resumeStop()
	l.killAgent()
	l.desired.Reclaim = false
	l.calls = slices.DeleteFunc(l.calls,
		func(c *call) bool { return !c.done && (c.effectAt.IsZero() || diesWithAgent(c.step)) })
	l.rules.agentKilled()
	l.probing, l.probes = map[string]bool{}, nil
	if chance(l.r, 2) {
		l.down = l.now.Add(l.within(5 * l.every))
	}
	l.hideMirror()
	l.note("agent killed, back at %s", l.down)
	if s := l.desired.Stop; s != nil {
		s.Deadline = later(l.now, l.down).Add(podutil.GracePeriod(l.desired.Pod))
	}
}

// recordsStops reports whether the next run of the agent knows the reason of a stop that this one has begun. In all
// other runs it does not, as if the record could not be written. The choice is as that of shortOfDisk.
func (l *simRun) recordsStops() bool { return l.seed%7 == 3 }

// resumeStop makes the stop of the pod the one that the next run of the agent has.
func (l *simRun) resumeStop() {
	s := l.desired.Stop
	switch {
	case s == nil:
	case l.recordsStops() && s.Reason != "" && (l.stopBegun || !s.New):
		l.desired.Stop = &podstate.Stop{Cause: s.Cause, Reason: s.Reason, Message: s.Message}
		return
	case s.Cause == podstate.StopEvicted:
		if l.desired.Stop = nil; l.recordsStops() { // as in a shutdown of the node
			l.evict()
		}
	default:
		l.desired.Stop = &podstate.Stop{Cause: s.Cause}
	}
	l.rules.result = resultOpen
}

// endsSlowly reports whether in this run all app containers have a preStop hook, and containers can outlive their
// sandbox. The choice is as that of shortOfDisk.
func (l *simRun) endsSlowly() bool { return l.seed%17 == 12 || l.seed%17 == 13 }

func (l *simRun) sandboxDies() {
	if n := len(l.sandboxes); n > 0 {
		if l.endsSlowly() && chance(l.r, 2) {
			l.note("sandbox %s dies, and its containers run on", l.sandboxes[n-1].ID)
			l.endPause(l.sandboxes[n-1].ID)
			return
		}
		l.note("sandbox %s dies", l.sandboxes[n-1].ID)
		l.killSandbox(&l.sandboxes[n-1])
	}
}

func (l *simRun) anyContainer(what string, do func(*podstate.Container)) {
	if n := len(l.containers); n > 0 {
		c := &l.containers[l.r.IntN(n)]
		l.note("%s %s", c.ID, what)
		do(c)
	}
}

// newSpec gives a container another image, or the pod another network, or adds an ephemeral container.
func (l *simRun) newSpec() {
	if l.movesNetwork() && chance(l.r, 2) {
		l.note("another network")
		next := *l.desired.Pod
		next.Generation++
		next.Spec.HostNetwork = !next.Spec.HostNetwork
		l.desired.Pod = &next
	} else if chance(l.r, 3) {
		l.note("a debugger is added")
		l.desired.Pod = withDebugger(l.desired.Pod)
	} else {
		l.note("a new image")
		l.desired.Pod = withImage(l.r, l.desired.Pod, pick(l.r, "image", "image2", "image3"))
	}
	l.desired.Hashes = hashesOf(l.desired.Pod)
	l.rules.knowPod(l.desired.Pod)
}

// jump sets the wall clock. What the agent measures with its own clock moves along, as monotonic time does in Go.
func (l *simRun) jump(d time.Duration) {
	l.note("the clock jumps by %s", d)
	move := func(t *time.Time) {
		if !t.IsZero() {
			*t = t.Add(d)
		}
	}
	stops := func(s podstate.Step) podstate.Step {
		switch s := s.(type) {
		case podstate.PreStop:
			move(&s.Deadline)
			return s
		case podstate.StopContainer:
			move(&s.Deadline)
			return s
		}
		return s
	}
	for _, t := range []*time.Time{&l.now, &l.down, &l.faultsEnd, &l.faultAt, &l.sent.at, &l.birth,
		&l.plan.Wake} {
		move(t)
	}
	for _, c := range l.calls {
		move(&c.effectAt)
		move(&c.endAt)
		c.step = stops(c.step)
	}
	for i := range l.exits {
		move(&l.exits[i].at)
	}
	for i := range l.probes {
		move(&l.probes[i].at)
	}
	for id, at := range l.ends {
		l.ends[id] = at.Add(d)
	}
	if l.mirror != nil {
		move(&l.mirror.at)
	}
	l.jumpMemory(d, stops)
	if s := l.desired.Stop; s != nil {
		moved := *s
		move(&moved.Deadline)
		l.desired.Stop = &moved
	}
}

func (l *simRun) jumpMemory(d time.Duration, stops func(podstate.Step) podstate.Step) {
	m := &l.memory
	for key, s := range m.InFlight {
		m.InFlight[key] = stops(s)
	}
	for key, f := range m.Failures {
		f.At, f.Step = f.At.Add(d), stops(f.Step)
		if !f.Looked.IsZero() {
			f.Looked = f.Looked.Add(d)
		}
		m.Failures[key] = f
	}
	for name, f := range m.Unstarted {
		f.At = f.At.Add(d)
		m.Unstarted[name] = f
	}
	for key, done := range m.Successes {
		done.At = done.At.Add(d)
		m.Successes[key] = done
	}
	for key, image := range m.Images {
		image.At = image.At.Add(d)
		m.Images[key] = image
	}
	for name, image := range l.imaged {
		image.At = image.At.Add(d)
		l.imaged[name] = image
	}
	for _, i := range m.Instances {
		i.Stop = stops(i.Stop).(podstate.StopContainer)
	}
	for name, v := range m.Volumes {
		if !v.RefreshAt.IsZero() {
			v.RefreshAt = v.RefreshAt.Add(d)
			m.Volumes[name] = v
		}
	}
}
