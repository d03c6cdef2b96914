package podstate

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// State is what follows from the facts about one pod: everything that more than one of the decisions of plan and
// podstatus need. Its methods change nothing, and its fields do not change after New has returned.
type State struct {
	// Desired is what New got, but Stop and Rejected are those that still count; see keepResult.
	Desired
	Observed
	// Current is the sandbox in which containers run; nil if none is usable.
	Current *Sandbox
	// Slots are the containers of the spec: init containers with sidecars, then app, then ephemeral containers.
	Slots []*Slot
	// Initialized: the init containers have completed in the current sandbox.
	Initialized bool
	// Ending is why the pod must not run any more; nil while it should run. Unlike Stop it includes the causes that follow
	// from the facts: the pod has completed, its deadline has passed, or it was rejected.
	Ending *Stop
	// Resetting: all containers must restart (KEP-5532), and instances still exist that must be removed first.
	Resetting bool
	// resetAsked: one of the existing instances has requested the reset, or the marker file says that it is in progress.
	resetAsked bool
	// Reported is the status on which the next one is based: the last one that this run of the agent has published, or
	// that of the API.
	Reported *corev1.PodStatus
}

// New returns the state that follows from the facts about one pod. The State refers to d and o, and changes neither.
func New(d Desired, o Observed) *State {
	s := &State{Desired: d, Observed: o, Reported: &d.Pod.Status}
	if own := o.Memory.Reported(); own != nil &&
		(podutil.IsTerminal(own.Phase) || !podutil.IsTerminal(d.Pod.Status.Phase)) {
		s.Reported = own
	}
	// Each line may use only what the lines above it have set. Until Ending is known, Resetting says that the pod would
	// reset if it went on: Completed relies on that.
	s.Current = s.usableSandbox()
	s.fillSlots()
	s.findPassed()
	s.Initialized = s.pastInit()
	s.findReset()
	s.keepResult()
	s.Ending = s.effectiveStop()
	s.Resetting = s.Resetting && s.Ending == nil
	return s
}

// usableSandbox returns the newest sandbox if containers can run in it; nil otherwise.
func (s *State) usableSandbox() *Sandbox {
	if len(s.Sandboxes) == 0 || s.Sandboxes[0].Problem(s.Pod) != "" {
		return nil
	}
	return &s.Sandboxes[0]
}

func (s *State) fillSlots() {
	all := make([]Slot, podutil.Count(&s.Pod.Spec))
	s.Slots = make([]*Slot, 0, len(all))
	for role, c := range podutil.Containers(&s.Pod.Spec) {
		slot := &all[len(s.Slots)]
		*slot = Slot{
			Spec:     c,
			Role:     role,
			Last:     Newest(s.Containers, c.Name),
			Reported: podutil.ContainerStatus(s.Reported, c.Name),
			state:    s,
		}
		slot.findVanished(s.Containers)
		slot.InCurrentSandbox = slot.Last != nil && s.Current != nil && slot.Last.SandboxID == s.Current.ID
		s.Slots = append(s.Slots, slot)
	}
}

// Newest returns the newest instance of the named container; nil if there is none.
func Newest(all []Container, name string) *Container {
	var found *Container
	for i := range all {
		if c := &all[i]; c.Name == name && (found == nil || c.Attempt > found.Attempt) {
			found = c
		}
	}
	return found
}

// Some reports whether is holds for one of the instances.
func Some(all []Container, is func(*Container) bool) bool {
	for i := range all {
		if is(&all[i]) {
			return true
		}
	}
	return false
}

// HasInit reports whether the pod has init containers or sidecars.
func (s *State) HasInit() bool { return len(s.Slots) > 0 && s.Slots[0].Role <= podutil.RoleSidecar }

// pastInit reports whether initialization is complete in the current sandbox: an app container has been started in it
// or is being started, or InitDone is true of every container. An app container that was only created does not count:
// its CreateContainer may have completed after a reset.
func (s *State) pastInit() bool {
	if s.Current == nil {
		return false
	}
	for _, slot := range s.Slots {
		if slot.Role == podutil.RoleApp && slot.InCurrentSandbox && s.startedInCurrent(slot.Spec.Name) {
			return true
		}
	}
	return !slices.ContainsFunc(s.Slots, func(slot *Slot) bool { return !slot.InitDone() })
}

// startedInCurrent reports whether an instance of a container was started in the current sandbox, or is
// being started.
func (s *State) startedInCurrent(name string) bool {
	return Some(s.Containers, func(c *Container) bool {
		return c.Name == name && c.SandboxID == s.Current.ID &&
			(c.State != ContainerCreated || s.Memory.Starting(c.ID))
	})
}

// SlotOf returns the slot whose newest instance is c; nil for any other instance.
func (s *State) SlotOf(c *Container) *Slot {
	for _, slot := range s.Slots {
		if slot.Last != nil && slot.Last.ID == c.ID {
			return slot
		}
	}
	return nil
}

// slot returns the slot of the named container; nil if the spec has none.
func (s *State) slot(name string) *Slot {
	for _, slot := range s.Slots {
		if slot.Spec.Name == name {
			return slot
		}
	}
	return nil
}

// Target returns the ID of the running instance of the container whose processes an ephemeral container shares. It is
// empty if there is none.
func (s *State) Target(ephemeral string) string {
	target := podutil.Target(&s.Pod.Spec, ephemeral)
	for i := range s.Containers {
		if c := &s.Containers[i]; c.Name == target && c.State == ContainerRunning {
			return c.ID
		}
	}
	return ""
}

// KeepsPrevious reports whether c is the newest exited instance of a container whose newest instance has not exited. It
// is kept for its log and its end, which the status shows.
func (s *State) KeepsPrevious(c *Container) bool {
	slot := s.slot(c.Name)
	if slot == nil || slot.Last == nil || slot.Last.State == ContainerExited || c.State != ContainerExited {
		return false
	}
	before := slot.Previous()
	return before != nil && before.ID == c.ID
}

// OtherMayRun reports whether an instance of a container that is not the newest has processes, or may get some: one
// that was created in the current sandbox may be being started, also for an earlier run of the agent.
func (s *State) OtherMayRun(name string) bool {
	return Some(s.Containers, func(c *Container) bool {
		startable := c.State == ContainerCreated && s.Current != nil && c.SandboxID == s.Current.ID
		return c.Name == name && (c.Alive() || startable) && s.SlotOf(c) == nil
	})
}

// SandboxHeld reports whether a sandbox may still hold its network. A sandbox that is not ready may still hold it, so
// each run of the agent stops every sandbox once.
func (s *State) SandboxHeld() bool { return slices.ContainsFunc(s.Sandboxes, s.Holds) }

// Holds reports whether this sandbox may still hold its network.
func (s *State) Holds(box Sandbox) bool { return box.Ready || !s.Memory.sandboxStopped(box.ID) }

// EverRan reports whether there is or was an instance of one of the pod's containers.
func (s *State) EverRan() bool {
	return slices.ContainsFunc(s.Slots, func(slot *Slot) bool { return slot.Last != nil })
}

// Quiescent reports whether the pod must end, no container of it runs or can still start, and it holds neither a
// network nor resource claims.
func (s *State) Quiescent() bool {
	return s.Ending != nil && !s.SandboxHeld() && !s.ClaimsHeld && !s.Memory.Runs(KindStartContainer) &&
		!Some(s.Containers, (*Container).Alive)
}

// keepResult takes the reason from the stop of a pod that had ended by itself before it: the pod keeps the phase that
// follows from its containers, and only what it still holds is released earlier. Its rejection does not count either,
// as when it did not get its devices back after a reboot: it needs none.
func (s *State) keepResult() {
	ending := func(slot *Slot) bool {
		_, begun := s.Memory.endStop(slot.Last)
		return begun && slot.Role != podutil.RoleSidecar
	}
	if s.Rejected != nil && s.Completed() && !slices.ContainsFunc(s.Slots, ending) {
		s.Rejected = nil
	}
	if stop := s.Stop; stop != nil && stop.New && !s.StopBegun && s.Completed() {
		s.Stop = &Stop{Cause: stop.Cause, Deadline: stop.Deadline}
	}
}

// effectiveStop returns why the pod must not run any more; nil while it should run. The deletion of the pod by its
// source takes precedence over an end that follows from the facts.
func (s *State) effectiveStop() *Stop {
	if s.Stop != nil && s.Stop.Cause > StopEvicted {
		return s.Stop
	}
	if podutil.IsTerminal(s.Reported.Phase) || s.Rejected != nil {
		return s.ownStop()
	}
	if s.Stop != nil {
		return s.Stop
	}
	if at := s.ActiveDeadline(); !at.IsZero() && !s.Now.Before(at) && !s.completedBefore(at) {
		stop := s.ownStop()
		stop.Reason = podutil.ReasonDeadlineExceeded
		stop.Message = "Pod was active on the node longer than the specified deadline"
		return stop
	}
	if s.Completed() {
		return s.ownStop()
	}
	return nil
}

// ownStop returns the stop for the remaining containers of a pod that ends by itself. They share one grace period,
// which begins when the first of them is stopped.
func (s *State) ownStop() *Stop {
	deadline := s.Now.Add(EndGrace(podutil.GracePeriod(s.Pod)))
	for _, slot := range s.Slots {
		if stop, begun := s.Memory.endStop(slot.Last); begun && stop.Deadline.Before(deadline) {
			deadline = stop.Deadline
		}
	}
	return &Stop{Cause: StopEvicted, Deadline: deadline}
}

// GraceLeft returns what is left of the grace period that the containers of a lost sandbox share. It begins with the
// stop of the first of them.
func (s *State) GraceLeft(sandbox string) time.Duration {
	grace, until := podutil.GracePeriod(s.Pod), time.Time{}
	for _, slot := range s.Slots {
		if slot.Last == nil || slot.Last.SandboxID != sandbox {
			continue
		}
		stop, goes := s.StopGoing(slot.Last)
		if goes && stop.Cause == CauseSandbox && stop.Deadline.After(until) {
			until = stop.Deadline
		}
	}
	if until.IsZero() {
		return grace
	}
	return min(grace, until.Sub(s.Now))
}

// StopGoing returns the stop of an instance that the agent has begun, and whether its time still counts. It does not if
// it has passed and the runtime has failed to stop the instance.
func (s *State) StopGoing(c *Container) (stop StopContainer, goes bool) {
	stop = s.Memory.Instance(c.ID).Stop
	last, _ := s.Memory.Failure(stop.Key())
	tried, _ := last.Step.(StopContainer) // with another deadline, it was an earlier try
	failed := tried.Deadline.Equal(stop.Deadline)
	return stop, stop.ID != "" && (s.Now.Before(stop.Deadline) || !failed || !c.Alive())
}

// HasClaims reports whether the pod refers to resource claims, by itself or through extended resources for which the
// scheduler has made a claim.
func (s *State) HasClaims() bool {
	return len(s.Pod.Spec.ResourceClaims) > 0 || s.Pod.Status.ExtendedResourceClaimStatus != nil
}

// ActiveDeadline returns when the pod must end by spec.activeDeadlineSeconds; zero if it has no deadline.
func (s *State) ActiveDeadline() time.Time {
	limit, start := s.Pod.Spec.ActiveDeadlineSeconds, s.Reported.StartTime
	if limit == nil || start == nil {
		return time.Time{}
	}
	return start.Add(time.Duration(*limit) * time.Second)
}

// Completed reports whether all app containers have finished and none restarts, or an init container has failed and
// does not restart.
func (s *State) Completed() bool {
	for _, slot := range s.Slots {
		switch slot.Role {
		case podutil.RoleInit:
			if slot.finished() && slot.InitIncomplete() && !slot.Passed {
				return true
			}
		case podutil.RoleApp:
			if !slot.finished() {
				return false
			}
		}
	}
	return len(s.Pod.Spec.Containers) > 0
}

// completedBefore reports whether the pod has completed, and all its containers but sidecars are known to have ended
// before a time.
func (s *State) completedBefore(at time.Time) bool {
	late := func(slot *Slot) bool {
		decides := slot.Last != nil && (slot.Role == podutil.RoleInit || slot.Role == podutil.RoleApp)
		return decides && (slot.Last.FinishedAt.IsZero() || !slot.Last.FinishedAt.Before(at))
	}
	return s.Completed() && !slices.ContainsFunc(s.Slots, late)
}
