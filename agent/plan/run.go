package plan

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// syncRunning plans what leads towards a running pod.
func (p *planner) syncRunning() {
	p.wakeAt(p.ActiveDeadline())
	ready := p.prepare()
	if p.Resetting {
		p.reset()
		return
	}
	p.forgetReset()
	if p.Current == nil {
		p.createSandbox()
	} else {
		p.stopUnknown()
	}
	p.removeOld()
	p.syncContainers(ready && !p.AwaitsPodSize())
	p.resize()
}

// createSandbox plans a new sandbox. What ran in earlier ones must have ended, and their networks must be
// released. The first mount of a volume does not hold the sandbox up: the two run at the same time.
func (p *planner) createSandbox() {
	if p.stopContainers(p.sandboxChanged) || p.stopSandboxes(p.Sandboxes) {
		return
	}
	if !p.Memory.Prepared() || !p.claimsReady() || p.Memory.MountFails() {
		return
	}
	attempt := uint32(0)
	if len(p.Sandboxes) > 0 {
		attempt = p.Sandboxes[0].Attempt + 1
	}
	p.step(podstate.CreateSandbox{Attempt: attempt})
}

// sandboxChanged returns the stop of an instance that is not in the current sandbox.
func (p *planner) sandboxChanged(c *podstate.Container) podstate.StopContainer {
	return p.stopOf(c, p.GraceLeft(c.SandboxID), podstate.CauseSandbox, podutil.MessageSandboxChanged)
}

// removeOld removes what the pod has left behind: exited instances, then sandboxes that hold nothing any more, apart
// from the newest, whose number is needed. It cancels the hooks of ended containers: one that waits for an answer would
// go on as long as the pod.
func (p *planner) removeOld() {
	for _, step := range p.Memory.Running() {
		key := step.Key()
		hook := key.Kind == podstate.KindPostStart || key.Kind == podstate.KindPreStop
		if hook && !alive(p.Containers, key.Target) {
			p.cancel(step)
		}
	}
	kept := map[string]bool{}
	for i := range p.Containers {
		c := &p.Containers[i]
		kept[c.SandboxID] = true
		slot := p.SlotOf(c)
		if !c.Alive() && (slot == nil || p.tooLate(slot)) && !p.KeepsPrevious(c) {
			p.remove(c)
		}
	}
	for i, box := range p.Sandboxes {
		switch {
		case i == 0 || kept[box.ID]:
		case p.Current == nil && p.Holds(box): // createSandbox stops it
		case !p.stopSandboxes([]podstate.Sandbox{box}):
			p.step(podstate.RemoveSandbox{ID: box.ID, Attempt: box.Attempt})
		}
	}
}

// remove removes an instance that does not run, but not while it is being started.
func (p *planner) remove(c *podstate.Container) {
	if p.Memory.Starting(c.ID) {
		p.inProgress(podstate.StartContainer{ID: c.ID, Name: c.Name})
		return
	}
	p.step(podstate.RemoveContainer{ID: c.ID, Name: c.Name})
}

// tooLate reports whether the newest instance of an init container must not start any more: a later container has
// started before it was created.
func (p *planner) tooLate(slot *podstate.Slot) bool {
	return slot.Role == podutil.RoleInit && slot.Passed && slot.Last.State == podstate.ContainerCreated &&
		!p.Memory.Starting(slot.Last.ID)
}

// syncContainers plans the containers whose turn it is: ephemeral ones at any time, init containers one after the other
// with sidecars among them, then all the others at the same time, except where a postStart hook holds back those after
// it. ready reports whether what all of them need is there.
func (p *planner) syncContainers(ready bool) {
	held := false
	for _, slot := range p.Slots {
		switch slot.Role {
		case podutil.RoleEphemeral:
			if p.Current != nil && (slot.Last == nil || slot.Last.State != podstate.ContainerExited) {
				p.next(slot, ready)
			}
		case podutil.RoleInit:
			if p.Initialized || slot.Passed {
				if slot.Alive() && !slot.Running() {
					p.next(slot, ready) // its end
				}
				// The runtime forgot it while what comes after it had already begun.
				p.heldUpBy(slot, "runs again, in parallel with the containers after it")
			} else if !held && !slot.InitDone() {
				p.next(slot, ready)
				p.heldUpBy(slot, "runs; the containers after it wait until it ends")
				held = true
			}
		case podutil.RoleSidecar:
			if !held {
				p.next(slot, ready)
				if held = !p.Initialized && !slot.InitDone(); held {
					p.heldUpBy(slot, "runs; the containers after it wait until it has started")
				}
			}
		case podutil.RoleApp:
			if p.Initialized || !held && p.Current == nil && !p.HasInit() {
				p.next(slot, ready)
			}
		}
	}
}

// heldUpBy names a running container that others wait for.
func (p *planner) heldUpBy(slot *podstate.Slot, why string) {
	if slot.Running() {
		p.wait(Wait{For: container(slot.Spec.Name), Why: why})
	}
}

// next plans the one next step of a container. While that leads to the container's postStart hook, the containers after
// it wait: the kubelet starts one after the other and waits for each hook, and pods depend on that. A proxy whose hook
// waits until it serves comes before the containers that need it.
func (p *planner) next(slot *podstate.Slot, ready bool) {
	last := slot.Last
	switch {
	case last == nil || last.State == podstate.ContainerExited:
		p.create(slot, ready)
	case last.State == podstate.ContainerCreated:
		p.start(slot)
	case !slot.InCurrentSandbox && p.Current == nil: // createSandbox stops it
	case !slot.InCurrentSandbox:
		p.stop(last, p.sandboxChanged(last))
	case last.State == podstate.ContainerUnknown && slot.Role == podutil.RoleEphemeral: // it would never run again
	case last.State == podstate.ContainerUnknown:
		why := titleOf(slot) + ` is in "unknown" state, try killing it before restart`
		p.stop(last, p.stopOf(last, podutil.GracePeriod(p.Pod), podstate.CauseUnknown, why))
	default:
		p.syncContainer(slot)
	}
	if slot.HookAhead(p.plan.Steps) {
		p.hook = cmp.Or(p.hook, slot)
	}
}

// waitForHook adds a wait if a container must not be created or started yet because of the postStart hook of an earlier
// one, and reports whether that is so.
func (p *planner) waitForHook(slot *podstate.Slot) bool {
	if p.hook == nil || slot.Role == podutil.RoleEphemeral {
		return false
	}
	p.wait(Wait{
		For: container(slot.Spec.Name),
		Why: "starts after container " + p.hook.Spec.Name + " and its postStart hook",
	})
	return true
}

// start plans the start of a created container. If its sandbox or its spec is no longer the current one, it plans its
// removal: the attempt has never run, and is created again. A removal that has begun goes on even if the spec is the
// current one again: its call may take effect late, and would then remove a container that runs.
func (p *planner) start(slot *podstate.Slot) {
	switch {
	case !slot.InCurrentSandbox || slot.Outdated() || p.Memory.Removing(slot.Last.ID):
		p.remove(slot.Last)
	case p.OtherMayRun(slot.Spec.Name): // it must end first
	case !p.waitForHook(slot):
		p.step(podstate.StartContainer{ID: slot.Last.ID, Name: slot.Spec.Name})
	}
}

// create plans the next instance of a container: its images at once, the instance when all that it needs is there.
func (p *planner) create(slot *podstate.Slot, ready bool) {
	if p.OtherMayRun(slot.Spec.Name) {
		return // it is being stopped or removed, and there must never be two
	}
	if slot.Last != nil {
		if !runsAgain(slot) {
			return
		}
		if until := slot.RestartAt(); p.Now.Before(until) {
			p.wakeAt(until)
			p.wait(Wait{For: container(slot.Spec.Name), Why: slot.BackoffMessage(), Until: until})
			return
		}
	}
	attempt := slot.NextAttempt()
	images := p.ensureImages(slot, attempt)
	if !images || !ready || !p.partsReady(slot) || p.Current == nil {
		return
	}
	if !p.waitForHook(slot) {
		p.createContainer(slot, podstate.CreateContainer{
			Name:      slot.Spec.Name,
			Attempt:   attempt,
			SandboxID: p.Current.ID,
			Backoff:   slot.NextDelay(),
			Target:    p.Target(slot.Spec.Name),
		})
	}
}

// ensureImages plans the image of a container and those of the image volumes that it mounts, and reports
// whether all are there.
func (p *planner) ensureImages(slot *podstate.Slot, attempt uint32) bool {
	c, all := slot.Spec, true
	own := ownImage(c, attempt)
	if have := p.Memory.Image(own); have.Attempt != attempt || have.Image != c.Image {
		all = false
		p.step(own)
	}
	for vol := range podstate.ImageVolumes(p.Pod, c) {
		ensure := podstate.EnsureImage{Volume: vol.Name, Image: vol.Image.Reference, Policy: vol.Image.PullPolicy}
		if p.Memory.Image(ensure).Image == ensure.Image {
			continue
		}
		all = false
		if !slices.Contains(p.plan.Steps, podstate.Step(ensure)) { // another container may mount it too
			p.step(ensure)
		}
	}
	return all
}

// runsAgain reports whether the container may run after its newest instance has ended. In a new sandbox a
// finished init container runs once more, since its work went with the old one.
func runsAgain(slot *podstate.Slot) bool {
	if slot.Role == podutil.RoleInit && !slot.InCurrentSandbox && !slot.InitIncomplete() {
		return true
	}
	return slot.Restarts()
}

// syncContainer plans what a running container needs: its hook, and its end where another instance must
// take its place.
func (p *planner) syncContainer(slot *podstate.Slot) {
	name, probes := slot.Spec.Name, slot.Probes()
	memory := p.Memory.Instance(slot.Last.ID)
	switch {
	case slot.Outdated():
		p.replace(slot, podstate.CauseSpec, endMessage(slot, "definition changed", true), nil)
	case slot.ResizeRestarts():
		p.replace(slot, podstate.CauseResize, "Container "+name+" resize requires restart", nil)
	case memory.Hook.Failure != "":
		p.replace(slot, podstate.CauseHook, "FailedPostStartHook", nil)
	case probes.Startup == podstate.ProbeFailure:
		p.replace(slot, podstate.CauseProbe, failedProbe(slot, "startup"), slot.Spec.StartupProbe)
	case probes.Liveness == podstate.ProbeFailure:
		p.replace(slot, podstate.CauseProbe, failedProbe(slot, "liveness"), slot.Spec.LivenessProbe)
	case memory.Stop.OfContainer() && memory.PreStopped: // the cause has gone, but the hook may have drained it
		p.replace(slot, memory.Stop.Cause, memory.Stop.Reason, nil)
	case slot.HookDue():
		p.step(podstate.PostStart{ID: slot.Last.ID, Name: name})
		p.hook = cmp.Or(p.hook, slot) // also while it waits to be tried again
	}
	c := slot.Spec
	if !slot.HookDue() && (c.StartupProbe != nil || c.LivenessProbe != nil || c.ReadinessProbe != nil) {
		p.probe(slot, false)
	}
}

// probe adds a running container to those that are probed.
func (p *planner) probe(slot *podstate.Slot, readinessOnly bool) {
	p.plan.Probes = append(p.plan.Probes, ProbeTarget{
		ContainerID:   slot.Last.ID,
		Container:     slot.Spec,
		StartedAt:     slot.Last.StartedAt,
		Started:       slot.ReportedStarted(),
		Ready:         slot.ReportedReady(),
		ReadinessOnly: readinessOnly,
	})
}

// failedProbe is the message for a container that a probe ends.
func failedProbe(slot *podstate.Slot, probe string) string {
	return endMessage(slot, "failed "+probe+" probe", !slot.NeverRestarts())
}

// endMessage is the kubelet's message for the end of a running container, after which it may restart. Of a sidecar it
// does not say that.
func endMessage(slot *podstate.Slot, why string, restarts bool) string {
	message := titleOf(slot) + " " + slot.Spec.Name + " " + why
	if restarts && slot.Role != podutil.RoleSidecar {
		message += ", will be restarted"
	}
	return message
}

// titleOf returns what the kubelet's messages about the end of a container call it.
func titleOf(slot *podstate.Slot) string {
	if slot.Role <= podutil.RoleSidecar {
		return "Init container"
	}
	return "Container"
}

// replace stops a running container so that the next instance can follow. A probe may have a grace period of its own.
func (p *planner) replace(slot *podstate.Slot, cause podstate.Cause, reason string, probe *corev1.Probe) {
	grace := podutil.GracePeriod(p.Pod)
	if probe != nil && probe.TerminationGracePeriodSeconds != nil {
		grace = podutil.Grace(*probe.TerminationGracePeriodSeconds)
	}
	if running := p.Memory.InFlight(podstate.StopContainer{ID: slot.Last.ID}.Key()); running != nil {
		p.inProgress(running)
		return
	}
	p.stop(slot.Last, p.stopOf(slot.Last, grace, cause, reason))
}
