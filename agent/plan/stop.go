package plan

import (
	"maps"
	"slices"
	"time"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// effectiveStop is why the pod must not run any more; nil while it should. What the sources want comes first, then what
// the facts say: a pod past its deadline, one that was refused, one that has done its work.
func (v *view) effectiveStop() *Stop {
	if v.d.Stop != nil && v.d.Stop.Cause > StopEvicted {
		return v.d.Stop
	}
	if podutil.IsTerminal(v.old.Phase) || v.d.Rejected != nil {
		return v.ending()
	}
	if v.d.Stop != nil {
		return v.d.Stop
	}
	if at := v.activeDeadline(); !at.IsZero() && !v.o.Now.Before(at) {
		s := v.ending()
		s.Reason, s.Message = ReasonDeadlineExceeded, "Pod was active on the node longer than the specified deadline"
		return s
	}
	if v.completed() {
		return v.ending()
	}
	return nil
}

// ending stops what is left of a pod that ends by itself: its containers have one grace together, from when the first of
// them is told.
func (v *view) ending() *Stop {
	deadline := v.o.Now.Add(podutil.GracePeriod(v.d.Pod))
	for i := range v.slots {
		s := &v.slots[i]
		if s.last == nil {
			continue
		}
		told, stopped := v.o.Memory.Killed[s.last.ID]
		if stopped && told.Cause == CauseEnd && told.Deadline.Before(deadline) {
			deadline = told.Deadline
		}
	}
	return &Stop{Cause: StopEvicted, Deadline: deadline}
}

func stoppingReason(container string) string { return "Stopping container " + container }

// activeDeadline is when the pod must have ended by spec.activeDeadlineSeconds; zero for never.
func (v *view) activeDeadline() time.Time {
	limit, start := v.d.Pod.Spec.ActiveDeadlineSeconds, v.old.StartTime
	if limit == nil || start == nil {
		return time.Time{}
	}
	return start.Add(time.Duration(*limit) * time.Second)
}

// completed: no container of the pod has anything left to do, or its initialization has failed for good.
func (v *view) completed() bool {
	for i := range v.slots {
		s := &v.slots[i]
		switch s.role {
		case podutil.RoleInit:
			if v.over(s) && s.last.ExitCode != 0 {
				return true
			}
		case podutil.RoleApp:
			if !v.over(s) {
				return false
			}
		}
	}
	return len(v.d.Pod.Spec.Containers) > 0
}

// over: the container has ended and its policy lets it rest.
func (v *view) over(s *slot) bool {
	return s.last != nil && s.last.State == ContainerExited && !v.restarts(s)
}

// restarts: a container that has ended is to be run again, by its policy or because the agent ended it for that.
func (v *view) restarts(s *slot) bool {
	return v.resetting && s.role != podutil.RoleEphemeral || s.last.Reason == ReasonRestartingAll || v.o.Memory.Killed[s.last.ID].Replaces() ||
		podutil.ShouldRestart(&v.d.Pod.Spec, s.spec, s.role, s.last.ExitCode)
}

// tearDown plans the end of a pod: containers, sidecars in reverse order, sandbox and volumes, cgroup; then, for one that
// no source knows any more, its traces.
func (v *view) tearDown(p *Plan) {
	waiting := v.giveUp(p)
	if v.stopContainers(p) || waiting {
		return
	}
	held := v.stopSandboxes(p, v.sandboxes)
	if v.o.ClaimsHeld {
		if !v.sandboxHeld() {
			v.step(p, UnprepareClaims{})
		}
		held = true
	}
	for _, name := range v.o.VolumesOnDisk {
		v.step(p, Unmount{Volume: name})
		held = true
	}
	if v.o.CgroupExists {
		if !v.sandboxHeld() {
			v.step(p, RemoveCgroup{})
		}
		held = true
	}
	p.Released = !held
	switch {
	case held:
	case v.stop.Cause == StopOrphaned:
		v.erase(p)
	case v.d.Reclaim:
		v.reclaim(p)
	}
}

// startPatience is how long after the end of its pod's grace the start of a container may still take.
const startPatience = 15 * time.Second

func starts(s Step) bool {
	_, is := s.(StartContainer)
	return is
}

// giveUp cancels the steps in flight that lead forward; their ends must be seen before the tear-down goes on. The start of a
// container is cut short only when it does not end by itself: a runtime that is interrupted there says that the container
// has failed.
func (v *view) giveUp(p *Plan) (waiting bool) {
	for _, key := range slices.SortedFunc(maps.Keys(v.o.Memory.InFlight), Key.Compare) {
		step := v.o.Memory.InFlight[key]
		if patience := v.stop.Deadline.Add(startPatience); starts(step) && v.o.Now.Before(patience) {
			v.wakeAt(p, patience)
			v.awaits(p, step)
			waiting = true
			continue
		}
		switch step.(type) {
		case Prepare, PrepareClaims, Mount, CreateSandbox, EnsureImage, CreateContainer, StartContainer, PostStart:
			p.Cancel = append(p.Cancel, key)
			p.Waits = append(p.Waits, Wait{For: step.String(), Why: "being given up"})
			waiting = true
		}
	}
	return waiting
}

// stopContainers stops app containers first, then sidecars, the last of them first. It tells whether any is still alive.
func (v *view) stopContainers(p *Plan) bool {
	busy := v.stopStrangers(p)
	for i := range v.slots {
		s := &v.slots[i]
		if s.role != podutil.RoleSidecar && alive(s.last) {
			v.stopInstance(p, s.last, CauseEnd, stoppingReason(s.spec.Name))
			busy = true
		}
		if s.spec.ReadinessProbe != nil && alive(s.last) {
			v.probe(p, s, true)
		}
	}
	for i := len(v.slots) - 1; i >= 0 && !busy; i-- {
		if s := &v.slots[i]; s.role == podutil.RoleSidecar && alive(s.last) {
			v.stopInstance(p, s.last, CauseEnd, stoppingReason(s.spec.Name))
			busy = true
		}
	}
	return busy
}

// stopStrangers stops instances that are not the newest of a container in the spec: all of them, for an orphan.
func (v *view) stopStrangers(p *Plan) (busy bool) {
	for i := range v.o.Containers {
		c := &v.o.Containers[i]
		if alive(c) && v.slotOf(c) == nil {
			v.stopInstance(p, c, CauseEnd, stoppingReason(c.Name))
			busy = true
		}
	}
	return busy
}

// slotOf is the slot whose newest instance c is; nil for any other instance.
func (v *view) slotOf(c *Container) *slot {
	for i := range v.slots {
		if s := &v.slots[i]; s.last != nil && s.last.ID == c.ID {
			return s
		}
	}
	return nil
}

func (v *view) stopInstance(p *Plan, c *Container, cause Cause, reason string) {
	deadline := v.o.Now.Add(podutil.GracePeriod(v.d.Pod))
	if v.stop != nil {
		deadline = v.stop.Deadline
	}
	if running, ok := v.o.Memory.InFlight[StopContainer{ID: c.ID}.Key()].(StopContainer); ok && v.stop == nil {
		deadline = running.Deadline
	}
	v.step(p, StopContainer{ID: c.ID, Name: c.Name, Deadline: deadline, Cause: cause, Reason: reason})
}

// stopSandboxes gives the network of the sandboxes back. A sandbox that is not ready may hold an address still, so each
// is stopped once in this life of the agent. It tells whether any still holds something.
func (v *view) stopSandboxes(p *Plan, all []Sandbox) (held bool) {
	for _, s := range all {
		if s.Ready || !v.o.Memory.StoppedSandboxes[s.ID] {
			v.step(p, StopSandbox{ID: s.ID, Attempt: s.Attempt})
			held = true
		}
	}
	return held
}

func (v *view) sandboxHeld() bool {
	for _, s := range v.sandboxes {
		if s.Ready || !v.o.Memory.StoppedSandboxes[s.ID] {
			return true
		}
	}
	return false
}

// reclaim removes what the runtime keeps of a pod that has ended: the containers with their logs, then the sandboxes. The
// API object stays, and with it the status.
func (v *view) reclaim(p *Plan) {
	for i := range v.o.Containers {
		v.step(p, RemoveContainer{ID: v.o.Containers[i].ID, Name: v.o.Containers[i].Name})
	}
	if len(v.o.Containers) > 0 {
		return
	}
	for _, s := range v.sandboxes {
		v.step(p, RemoveSandbox{ID: s.ID, Attempt: s.Attempt})
	}
	p.Reclaimed = len(v.sandboxes) == 0
}

// erase removes what the runtime and the disk still show of a pod that nobody knows any more.
func (v *view) erase(p *Plan) {
	left := false
	inSandbox := map[string]bool{}
	for _, s := range v.sandboxes {
		inSandbox[s.ID] = true
		v.step(p, RemoveSandbox{ID: s.ID, Attempt: s.Attempt})
		left = true
	}
	for i := range v.o.Containers {
		if c := &v.o.Containers[i]; !inSandbox[c.SandboxID] {
			v.step(p, RemoveContainer{ID: c.ID, Name: c.Name})
			left = true
		}
	}
	if !left && v.o.DirOnDisk {
		v.step(p, RemoveDir{})
		left = true
	}
	p.Done = !left && len(v.o.Memory.InFlight) == 0
}
