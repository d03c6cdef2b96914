package plan

import (
	"slices"
	"time"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// tearDown plans the end of a pod: containers, sidecars in reverse order, sandbox and volumes, cgroup;
// then, for one that no source knows any more, its traces.
func (p *planner) tearDown() {
	waiting := p.giveUp()
	// busy is true exactly if a container is alive. If none is, Clearing was true, and the facts below were observed.
	busy := p.stopContainers(p.endOf)
	if busy {
		p.renew()
	}
	if busy || waiting {
		return
	}
	held := p.stopSandboxes(p.Sandboxes)
	if p.ClaimsHeld {
		if !p.SandboxHeld() {
			p.step(podstate.UnprepareClaims{})
		}
		held = true
	}
	late := p.mayStartLate()
	for _, name := range p.VolumesOnDisk {
		if !late && !p.Mounting(name) {
			p.step(podstate.Unmount{Volume: name})
		}
		held = true
	}
	if p.CgroupExists {
		if !p.SandboxHeld() {
			p.step(podstate.RemoveCgroup{})
		}
		held = true
	}
	held = held || p.Memory.Runs(podstate.KindMount) // one that hangs holds up no other volume
	p.plan.Released = !held
	switch {
	case held:
	case p.Ending.Cause == podstate.StopOrphaned:
		p.removeTraces()
	case p.Reclaim:
		p.reclaim()
	}
}

// mayStartLate reports whether a created instance may still be started, by a call that the agent gave up or that an
// earlier run of it made. Once its sandbox is stopped, a runtime begins no start in it.
func (p *planner) mayStartLate() bool {
	return podstate.Some(p.Containers, func(c *podstate.Container) bool {
		held := func(box podstate.Sandbox) bool { return box.ID == c.SandboxID && p.Holds(box) }
		return c.State == podstate.ContainerCreated && slices.ContainsFunc(p.Sandboxes, held)
	})
}

// renew plans the renewal of tokens and certificates, which may expire while the containers of the pod end.
func (p *planner) renew() {
	for vol := range p.Volumes() {
		if v, expires := p.Expiring(vol.Name); expires && p.Now.Before(v.RefreshAt) {
			p.wakeAt(v.RefreshAt)
		} else if expires {
			p.step(podstate.Mount{Volume: vol.Name})
		}
	}
}

// startTimeout is how long after the end of its pod's grace period the start of a container may still take.
const startTimeout = 15 * time.Second

// giveUp cancels the steps in flight that lead towards a running pod, and reports whether there are others than mounts:
// their outcome must be seen before the tear-down goes on. The start of a container is cancelled only when it does not
// end by itself: a runtime that is interrupted there reports that the container has failed. A preStop hook is cancelled
// when its container has ended.
func (p *planner) giveUp() (waiting bool) {
	deadline := p.Ending.Deadline.Add(startTimeout)
	inUse := podstate.Some(p.Containers, (*podstate.Container).Alive)
	for _, step := range p.Memory.Running() {
		switch step := step.(type) {
		case podstate.StartContainer:
			waiting = true
			if p.Now.Before(deadline) {
				p.wakeAt(deadline)
				p.inProgress(step)
			} else {
				p.cancel(step)
			}
		case podstate.Mount:
			if _, expires := p.Expiring(step.Volume); expires && inUse {
				continue // renew waits for it
			}
			p.cancel(step) // tearDown waits for it
		case podstate.Prepare, podstate.PrepareClaims, podstate.CreateSandbox, podstate.EnsureImage,
			podstate.CreateContainer, podstate.PostStart:
			p.cancel(step)
			waiting = true
		case podstate.PreStop:
			if !alive(p.Containers, step.ID) {
				p.cancel(step)
			}
		}
	}
	return waiting
}

func alive(all []podstate.Container, id string) bool {
	return podstate.Some(all, func(c *podstate.Container) bool { return c.ID == id && c.Alive() })
}

// stopContainers stops app containers first, then sidecars, the last of them first. Init and ephemeral containers hold
// up no sidecar. When its time has passed, a sidecar does not wait for others any more: one after the other, each would
// take some seconds more. It reports whether any container is still alive.
func (p *planner) stopContainers(stopOf func(*podstate.Container) podstate.StopContainer) (busy bool) {
	held := p.stopUnknown()
	busy = held
	for _, slot := range p.Slots {
		held = held || slot.Role == podutil.RoleApp && p.mayRun(slot)
		if !slot.Alive() {
			continue
		}
		if slot.Role != podutil.RoleSidecar {
			p.stop(slot.Last, stopOf(slot.Last))
		}
		busy = true
		if slot.Spec.ReadinessProbe != nil {
			p.probe(slot, true)
		}
	}
	for _, slot := range slices.Backward(p.Slots) {
		if slot.Role != podutil.RoleSidecar {
			continue
		}
		if slot.Alive() {
			if s := stopOf(slot.Last); held && p.Now.Before(s.Deadline) {
				p.preStop(slot.Last, s) // all hooks run at once, and only the signals come in order
				p.wakeAt(s.Deadline)
			} else {
				p.stop(slot.Last, s)
			}
		}
		held = held || p.mayRun(slot)
	}
	return busy
}

// mayRun reports whether the newest instance of a container is alive, or is being started and may be so at any time.
func (p *planner) mayRun(slot *podstate.Slot) bool {
	return slot.Alive() ||
		slot.Last != nil && slot.Last.State == podstate.ContainerCreated && p.Memory.Starting(slot.Last.ID)
}

// stopUnknown stops instances that are not the newest of a container in the spec: of an orphan, all of
// them. It reports whether any is still alive.
func (p *planner) stopUnknown() (busy bool) {
	for i := range p.Containers {
		if c := &p.Containers[i]; c.Alive() && p.SlotOf(c) == nil {
			p.stop(c, p.endOf(c))
			busy = true
		}
	}
	return busy
}

// endOf returns the stop of an instance of a pod that ends, or of one that is not the instance that should run.
func (p *planner) endOf(c *podstate.Container) podstate.StopContainer {
	return p.stopOf(c, podutil.GracePeriod(p.Pod), podstate.CauseEnd, "Stopping container "+c.Name)
}

// stopOf returns the stop of an instance. In a pod that ends, all share the grace period of the pod. Else the instance
// gets a time of its own, or what is left of it: it begins with the preStop hook, and ends if the runtime fails to stop
// the instance.
func (p *planner) stopOf(c *podstate.Container, grace time.Duration, cause podstate.Cause, reason string,
) podstate.StopContainer {
	s := podstate.StopContainer{ID: c.ID, Name: c.Name, Deadline: p.Now.Add(grace), Cause: cause, Reason: reason}
	if p.Ending != nil {
		s.Deadline = p.Ending.Deadline
	} else if begun, goes := p.StopGoing(c); goes && begun.Deadline.Before(s.Deadline) {
		s.Deadline = begun.Deadline
	}
	return s
}

// stop plans the stop of an instance, with its preStop hook first.
func (p *planner) stop(c *podstate.Container, s podstate.StopContainer) {
	if !p.preStop(c, s) {
		p.step(s)
	}
}

// preStop plans the preStop hook of an instance unless it has run before, and reports whether the stop waits for it:
// not longer than until its deadline. From then on the hook has as long as its container.
func (p *planner) preStop(c *podstate.Container, s podstate.StopContainer) (waits bool) {
	hook := podstate.PreStop(s)
	if running, runs := p.Memory.InFlight(hook.Key()).(podstate.PreStop); runs {
		if !p.Now.Before(running.Deadline) || !p.Now.Before(s.Deadline) {
			return false
		}
		p.inProgress(running)
		p.wakeAt(running.Deadline)
		p.wakeAt(s.Deadline)
		return true
	}
	_, failed := p.Memory.Failure(hook.Key())
	if !c.PreStop || c.State != podstate.ContainerRunning || !p.Now.Before(s.Deadline) ||
		p.Memory.Instance(c.ID).PreStopped && !failed || p.Memory.InFlight(s.Key()) != nil {
		return false
	}
	p.step(hook)
	p.wakeAt(s.Deadline)
	return true
}

// stopSandboxes releases the network of the sandboxes. It reports whether any still holds something.
func (p *planner) stopSandboxes(all []podstate.Sandbox) (held bool) {
	for _, box := range all {
		if p.Holds(box) {
			p.step(podstate.StopSandbox{ID: box.ID, Attempt: box.Attempt})
			held = true
		}
	}
	return held
}

// reclaim removes what the runtime keeps of a pod that has ended: the containers with their logs, then the
// sandboxes. The API object stays, and with it the status.
func (p *planner) reclaim() {
	for i := range p.Containers {
		p.step(podstate.RemoveContainer{ID: p.Containers[i].ID, Name: p.Containers[i].Name})
	}
	if len(p.Containers) > 0 {
		return
	}
	for _, box := range p.Sandboxes {
		p.step(podstate.RemoveSandbox{ID: box.ID, Attempt: box.Attempt})
	}
	p.plan.Reclaimed = len(p.Sandboxes) == 0
}

// removeTraces removes what the runtime and the disk still have of a pod that no source knows. What the runtime fails
// to remove does not hold up a pod that returns: its next worker finds it, by the directory that stays as well, and
// tries again.
func (p *planner) removeTraces() {
	left, held := false, false
	remove := func(s podstate.Step) (fails bool) {
		_, fails = p.Memory.Failure(s.Key())
		left = true
		if !fails || !p.Returns || p.Memory.InFlight(s.Key()) != nil {
			p.step(s)
			held = true
		}
		return fails
	}
	goes := map[string]bool{} // the containers in a sandbox go with it
	for _, box := range p.Sandboxes {
		goes[box.ID] = !remove(podstate.RemoveSandbox{ID: box.ID, Attempt: box.Attempt})
	}
	for i := range p.Containers {
		if c := &p.Containers[i]; !goes[c.SandboxID] {
			remove(podstate.RemoveContainer{ID: c.ID, Name: c.Name})
		}
	}
	if !left && p.DirOnDisk {
		held = true
		p.step(podstate.RemoveDir{})
	}
	p.plan.Done = !held && len(p.Memory.Running()) == 0
}
