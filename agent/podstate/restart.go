package podstate

import (
	"time"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// BackoffReset is how long an instance must have run before the back-off of its container starts over.
const BackoffReset = 10 * time.Minute

// crashDelay returns the crash-loop back-off after the end of the newest instance. It starts over when the spec has
// changed: with more memory, a container may not crash again.
func (s *Slot) crashDelay() time.Duration {
	if s.Changed() || s.remade() || s.stopped().Replaces() {
		return 0
	}
	last, node := s.Last, &s.state.Node
	if last.ran() >= BackoffReset {
		return 0
	}
	if delay, known := s.state.Memory.backoff(Instance{last.Name, last.Attempt}); known {
		return delay
	}
	if last.Attempt == 0 {
		return 0 // the first restart is immediate
	}
	// This run of the agent has not seen the earlier restarts, so it counts all of them as crashes.
	return doubled(node.BackoffFirst, int(last.Attempt)-1, node.BackoffMax)
}

// RestartDelay returns how long after the end of the newest instance the next may be created. It is the crash delay,
// or zero if the instance did not end by itself and ran for at least that long. An instance does not end by itself if
// a probe has failed, if a reset has removed it, or if its sandbox has ended, as in a reboot.
func (s *Slot) RestartDelay() time.Duration {
	delay := s.crashDelay()
	if (s.stopped().unhealthy() || !s.InCurrentSandbox) && s.Last.ran() >= delay {
		return 0
	}
	return delay
}

// RestartAt returns when the next instance may be created. Of a lost instance only the time in its status is known. If
// that is in the future, the clock was set back since and the time says nothing: the next may be created at once.
func (s *Slot) RestartAt() time.Time {
	ended := s.Last.EndedAt
	if ended.IsZero() && !s.Last.FinishedAt.After(s.state.Now) {
		ended = s.Last.FinishedAt
	}
	return ended.Add(s.RestartDelay())
}

// NextDelay returns the crash-loop back-off after the end of the next instance. If a failed probe ends the first
// instance, that does not count as a crash.
func (s *Slot) NextDelay() time.Duration {
	if s.Last == nil || s.Changed() || s.remade() {
		return 0
	}
	if stop := s.stopped(); stop.Replaces() || stop.unhealthy() && s.Last.Attempt == 0 {
		return 0
	}
	node := &s.state.Node
	return min(max(node.BackoffFirst, 2*s.crashDelay()), node.BackoffMax)
}

// ran returns how long an exited instance ran.
func (c *Container) ran() time.Duration {
	if c.StartedAt.IsZero() || c.FinishedAt.IsZero() {
		return 0
	}
	return c.FinishedAt.Sub(c.StartedAt)
}

// Alive reports whether the instance may have processes.
func (c *Container) Alive() bool { return c.State == ContainerRunning || c.State == ContainerUnknown }

// BackoffMessage returns the kubelet's message for a container that waits for its crash-loop back-off.
func (s *Slot) BackoffMessage() string {
	return "back-off " + s.crashDelay().String() + " restarting failed container=" + s.Spec.Name +
		" pod=" + podutil.Text(s.state.Pod)
}
