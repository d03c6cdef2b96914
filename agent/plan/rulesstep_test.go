package plan

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// beginning checks a step that is about to begin.
func (ru *rules) beginning(w *world, s podstate.Step) {
	if running, busy := w.memory.InFlight[s.Key()]; busy && !podstate.Overtakes(s, running) {
		ru.breaks("%s begins while %s is in flight", s, running)
	}
	if f, failed := ru.failed[s.Key()]; failed && podstate.SameStep(f.what, s) &&
		ru.mono() < f.at+podstate.StepRetryFirst {
		ru.breaks("%s is tried again %s after it failed", s, ru.mono()-f.at)
	}
	ru.oneWay(w, s)
	ru.devicesFirst(s)
	switch s := s.(type) {
	case podstate.Prepare, podstate.PrepareClaims, podstate.Mount, podstate.EnsureImage, podstate.PostStart:
		ru.forward(s)
	case podstate.StartContainer:
		ru.forward(s)
		ru.hooksBefore(s, s.Name)
	case podstate.CreateSandbox:
		ru.forward(s)
		ru.claimsFirst(s)
		ru.sandboxWaits(s)
		ru.fewSandboxes(w, &w.plan)
	case podstate.UnprepareClaims:
		if c := ru.someAlive(func(*podstate.Container) bool { return true }); c != nil {
			ru.breaks("%s while %s runs", s, c.ID)
		}
	case podstate.Resize, podstate.ResizePod:
		ru.beginningResize(w, s)
	case podstate.CreateContainer:
		ru.forward(s)
		ru.claimsFirst(s)
		ru.volumesFirst(w, s)
		ru.imageFirst(s)
		ru.podHasRoom(w, s)
		ru.hooksBefore(s, s.Name)
		ru.creating(s)
		ru.unlogged(s)
	case podstate.PreStop:
		ru.preStopping(s)
	case podstate.StopContainer:
		ru.hookFirst(s)
		ru.stopBegins(s)
		ru.stoppingOne(s)
	case podstate.RemoveContainer:
		if s.KeepLog {
			ru.resetting(s)
		}
	case podstate.StopSandbox:
		if c := ru.someAlive(func(c *podstate.Container) bool { return c.SandboxID == s.ID }); c != nil {
			ru.breaks("%s while %s runs in it", s, c.ID)
		}
	case podstate.Unmount:
		if c := ru.someAlive(func(*podstate.Container) bool { return true }); c != nil {
			ru.breaks("%s while %s runs", s, c.ID)
		}
		for _, c := range ru.l.containers {
			if box := ru.l.sandbox(c.SandboxID); c.State == podstate.ContainerCreated && box != nil && box.Ready {
				ru.breaks("%s while %s may be started", s, c.ID)
			}
		}
	}
	if _, create := s.(podstate.CreateSandbox); create {
		ru.l.tally.sandboxes++
		if c := ru.someAlive(func(*podstate.Container) bool { return true }); c != nil {
			ru.breaks("%s while %s runs in another", s, c.ID)
		}
	}
}

// oneWay checks that a step does not begin while its opposite is in flight, because their order is not known then.
func (ru *rules) oneWay(w *world, s podstate.Step) {
	opposite := podstate.Step(nil)
	switch s := s.(type) {
	case podstate.Prepare:
		opposite = podstate.RemoveCgroup{}
	case podstate.RemoveCgroup:
		opposite = podstate.Prepare{}
	case podstate.PrepareClaims:
		opposite = podstate.UnprepareClaims{}
	case podstate.UnprepareClaims:
		opposite = podstate.PrepareClaims{}
	case podstate.Mount:
		opposite = podstate.Unmount{Volume: s.Volume}
	case podstate.Unmount:
		opposite = podstate.Mount{Volume: s.Volume}
	case podstate.StartContainer:
		opposite = podstate.RemoveContainer{ID: s.ID}
	case podstate.RemoveContainer:
		opposite = podstate.StartContainer{ID: s.ID}
	default:
		return
	}
	if w.memory.InFlight[opposite.Key()] != nil {
		ru.breaks("%s begins while %s is in flight", s, opposite)
	}
}

// claimsFirst checks that nothing of a pod is created before its resource claims are prepared.
func (ru *rules) claimsFirst(s podstate.Step) {
	if len(ru.l.desired.Pod.Spec.ResourceClaims) > 0 && !ru.l.claims {
		ru.breaks("%s before the pod's resource claims are prepared", s)
	}
}

// volumesFirst checks that no container is created before the pod's volumes are mounted.
func (ru *rules) volumesFirst(w *world, s podstate.Step) {
	for _, v := range w.desired.Pod.Spec.Volumes {
		if !w.volumes[v.Name] && !ru.unmounted[v.Name] {
			ru.breaks("%s before volume %s is mounted", s, v.Name)
		}
	}
}

func (ru *rules) forward(s podstate.Step) {
	if ru.stopping() {
		ru.breaks("%s begins in a pod that must end", s)
	}
	if ru.pastDeadline() {
		ru.breaks("%s begins in a pod whose deadline has passed", s)
	}
}

// hooksBefore checks that no container is created or started while one before it is created or started, or runs its
// postStart hook.
func (ru *rules) hooksBefore(s podstate.Step, name string) {
	if ru.roles[name] == podutil.RoleEphemeral {
		return
	}
	for _, c := range podutil.Containers(&ru.l.desired.Pod.Spec) {
		if c.Name == name {
			return
		}
		if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
			continue
		}
		for _, other := range ru.l.memory.InFlight {
			if startsOrHooks(other, c.Name) {
				ru.breaks("%s while %s is in flight", s, other)
			}
		}
		newest := podstate.Newest(ru.l.containers, c.Name)
		if newest == nil || newest.State != podstate.ContainerRunning || ru.hookThrough(newest, c) {
			continue
		}
		if m := ru.l.memory.Recall().Instance(newest.ID); !m.Hook.Ended && m.Stop.ID == "" {
			ru.breaks("%s before the postStart hook of %s", s, newest.ID)
		}
	}
}

// startsOrHooks reports whether a step creates or starts the named container, or runs its postStart hook.
func startsOrHooks(s podstate.Step, name string) bool {
	switch s := s.(type) {
	case podstate.CreateContainer:
		return s.Name == name
	case podstate.StartContainer:
		return s.Name == name
	case podstate.PostStart:
		return s.Name == name
	}
	return false
}

func (ru *rules) creating(s podstate.CreateContainer) {
	spec := ru.specs[s.Name]
	if c := ru.someAlive(func(c *podstate.Container) bool { return c.Name == s.Name }); c != nil {
		ru.breaks("%s while %s runs", s, c.ID)
	}
	onHost := ru.l.desired.Pod.Spec.HostNetwork
	if box := ru.l.sandbox(s.SandboxID); box != nil && (box.Network == podstate.NetworkHost) != onHost {
		ru.breaks("%s, which is on another network than the pod", s)
	}
	ru.unstartedWaits(s)
	ru.inOrder(s)
	last := ru.last[s.Name]
	if last == nil {
		ru.delays[s.Name+".0"] = 0
		return
	}
	// A replaced container did not crash, even if its spec has changed back since.
	changed := last.hash != ru.l.desired.Hashes[s.Name] || ru.replaced(last.id) || ru.otherSize(s.Name, last.made)
	ru.workKept(s)
	ru.policyKept(s, last)
	if ru.roles[s.Name] != podutil.RoleEphemeral && spec != nil {
		ru.backoffKept(s, last, changed)
	}
}

// inOrder checks the order in this sandbox: an init container starts after all init containers before it have
// completed, and an app container after all of them.
func (ru *rules) inOrder(s podstate.CreateContainer) {
	if ru.roles[s.Name] == podutil.RoleEphemeral {
		return
	}
	for _, c := range ru.l.desired.Pod.Spec.InitContainers {
		if c.Name == s.Name {
			return
		}
		key := s.SandboxID + "/" + c.Name
		if ru.roles[c.Name] == podutil.RoleInit && !ru.initDone[key] || ru.roles[c.Name] == podutil.RoleSidecar &&
			!ru.sidecarUp[key] {
			ru.breaks("%s before %s has completed in this sandbox", s, c.Name)
		}
	}
}

// workKept checks that an init container does not run again after a later container has started in the same sandbox.
func (ru *rules) workKept(s podstate.CreateContainer) {
	if ru.roles[s.Name] != podutil.RoleInit || !ru.initDone[s.SandboxID+"/"+s.Name] {
		return
	}
	after := map[string]bool{}
	found := false
	for role, c := range podutil.Containers(&ru.l.desired.Pod.Spec) {
		after[c.Name] = found && role != podutil.RoleEphemeral
		found = found || c.Name == s.Name
	}
	for i := range ru.l.containers {
		if c := &ru.l.containers[i]; after[c.Name] && c.SandboxID == s.SandboxID && c.State != podstate.ContainerCreated {
			ru.breaks("%s although %s has started after it in this sandbox", s, c.ID)
		}
	}
}

// policyKept checks that a container runs again only if its restart policy allows it, its spec has changed, or it is
// an init container whose sandbox was lost.
func (ru *rules) policyKept(s podstate.CreateContainer, last *instanceFact) {
	switch {
	case !last.ended, ru.forgotten[s.Name], ru.mustRunAgain(s.Name, last.id, last.code):
	case last.starved && ru.policy(s.Name) != corev1.RestartPolicyNever:
	case ru.roles[s.Name] == podutil.RoleInit && last.code == 0 && !last.starved && last.sandbox != s.SandboxID:
	default:
		ru.breaks("%s although %s has exited with %d", s, last.id, last.code)
	}
}

func doubled(delay time.Duration) time.Duration {
	return min(max(backoffFirst, 2*delay), backoffMax)
}

// resetWaits checks that a container which a reset has removed waits for its back-off, unless it ran for at least
// that long. The times are those of the status, which have no fractions of a second. An end in the future does not
// count, nor one that the agent may not have seen, because the runtime lost the instance, or does not see any more in
// the status of a mirror pod that came late.
func (ru *rules) resetWaits(s podstate.CreateContainer, last *instanceFact, delay time.Duration) {
	waited := ru.l.now.Sub(last.finishedAt)
	known := ru.owed[s.Name] && last.ended && s.Attempt == last.attempt+1
	if known && waited >= 0 && max(waited, last.ranFor) < delay-time.Second {
		ru.breaks("%s %s after %s has ended, which a reset has removed; its back-off is %s", s, waited, last.id, delay)
	}
}

// backoffKept checks that the delays double from ten seconds to the limit, and start over after a long run or for a new
// spec.
func (ru *rules) backoffKept(s podstate.CreateContainer, last *instanceFact, changed bool) {
	this, before := fmt.Sprintf("%s.%d", s.Name, s.Attempt), fmt.Sprintf("%s.%d", s.Name, last.attempt)
	delay, known := ru.delays[before]
	switch {
	case changed:
		ru.delays[this] = 0
		return
	case ru.forgotten[s.Name] || !last.ended:
		ru.resetWaits(s, last, delay)
		ru.delays[this] = s.Backoff
		return
	case last.long:
		delay = 0
	case !known:
		delay = s.Backoff / 2
		if s.Backoff == backoffFirst {
			delay = 0
		}
	}
	probed := ru.stopped[last.id] == podstate.CauseProbe
	outside := probed || last.sandbox != s.SandboxID // as far as is known, it did not end by itself
	if waited := ru.mono() - last.endedAt; known && waited < delay && !(outside && last.ranFor >= delay) {
		ru.breaks("%s %s after %s has ended; its back-off is %s", s, waited, last.id, delay)
	}
	want := doubled(delay)
	if probed && last.attempt == 0 {
		want = 0
	}
	// An attempt after that instance that the status has counted, although it never ran, may count as a crash.
	counted, also := ru.delays[fmt.Sprintf("%s.%d", s.Name, s.Attempt-1)]
	if known && s.Backoff != want && !(also && s.Attempt-1 > last.attempt && s.Backoff == doubled(counted)) {
		ru.breaks("%s sets a back-off of %s, want %s", s, s.Backoff, want)
	}
	if s.Backoff < backoffFirst && want > 0 || s.Backoff > backoffMax {
		ru.breaks("%s sets a back-off of %s", s, s.Backoff)
	}
	ru.delays[this] = s.Backoff
}
