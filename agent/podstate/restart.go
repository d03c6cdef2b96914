package podstate

import (
	"fmt"
	"time"
)

const (
	// DefaultBackoffMax is the longest crash-loop back-off, the kubelet's.
	DefaultBackoffMax = 5 * time.Minute
	// DefaultBackoffFirst is the first crash-loop back-off, the kubelet's.
	DefaultBackoffFirst = 10 * time.Second
	// BackoffReset is how long an instance must have run for the back-off of its container to begin again.
	BackoffReset = 10 * time.Minute
)

// CrashDelay is the back-off in force after the end of the newest instance. It begins again when the spec
// has changed.
func (s *Slot) CrashDelay() time.Duration {
	if s.Changed() || s.replaced() || s.removedForReset() {
		return 0
	}
	last, node := s.Last, &s.state.Node
	if last.ran() >= BackoffReset {
		return 0
	}
	if delay, known := s.memory.Backoff(Instance{last.Name, last.Attempt}); known {
		return delay
	}
	if last.Attempt == 0 {
		return 0 // the first restart is immediate
	}
	// The agent has not seen the earlier restarts; as many as there were count as crashes.
	return doubled(node.backoffFirst(), int(last.Attempt)-1, node.backoffMax())
}

// RestartDelay is how long after the end of the newest instance the next may be created: the crash delay,
// or nothing where the instance did not end by itself (a probe has ended it, or it went with its sandbox,
// as in a reboot) and ran for at least as long.
func (s *Slot) RestartDelay() time.Duration {
	delay := s.CrashDelay()
	if stop, _ := s.memory.Stopped(s.Last.ID); (stop.Unhealthy() || !s.InCurrentSandbox) && s.Last.ran() >= delay {
		return 0
	}
	return delay
}

// RestartAt is when the next instance may be created.
func (s *Slot) RestartAt() time.Time { return s.Last.ended().Add(s.RestartDelay()) }

// NextDelay is the back-off that will be in force after the end of the next instance. The first time that a
// probe ends the container does not count.
func (s *Slot) NextDelay() time.Duration {
	if s.Last == nil || s.Changed() {
		return 0
	}
	if stop, _ := s.memory.Stopped(s.Last.ID); stop.Replaces() || stop.Unhealthy() && s.Last.Attempt == 0 {
		return 0
	}
	node := &s.state.Node
	return min(max(node.backoffFirst(), 2*s.CrashDelay()), node.backoffMax())
}

func (n *Node) backoffFirst() time.Duration {
	if n.BackoffFirst > 0 {
		return n.BackoffFirst
	}
	return DefaultBackoffFirst
}

func (n *Node) backoffMax() time.Duration {
	if n.BackoffMax > 0 {
		return n.BackoffMax
	}
	return DefaultBackoffMax
}

// ran is how long an exited instance ran.
func (c *Container) ran() time.Duration {
	if c.StartedAt.IsZero() || c.FinishedAt.IsZero() {
		return 0
	}
	return c.FinishedAt.Sub(c.StartedAt)
}

// ended is when an exited instance ended, for measuring from.
func (c *Container) ended() time.Time {
	if c.EndedAt.IsZero() {
		return c.FinishedAt
	}
	return c.EndedAt
}

// Alive reports whether the instance may have processes.
func (c *Container) Alive() bool { return c.State == ContainerRunning || c.State == ContainerUnknown }

// BackoffMessage is the kubelet's message for a container that waits for its crash-loop back-off.
func (s *Slot) BackoffMessage() string {
	pod := s.state.Pod
	return fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)", s.CrashDelay(), s.Spec.Name,
		pod.Name, pod.Namespace, pod.UID)
}
