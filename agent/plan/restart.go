package plan

import (
	"time"
)

const (
	// DefaultBackoffMax is the longest crash-loop back-off, the kubelet's.
	DefaultBackoffMax = 5 * time.Minute
	backoffFirst      = 10 * time.Second
	// backoffReset is how long a container must have run for its back-off to start anew.
	backoffReset = 10 * time.Minute
)

// crashDelay is the delay after the end of the newest instance of s before the next may be made. A changed spec starts anew.
func (v *view) crashDelay(s *slot) time.Duration {
	if v.changed(s) || v.o.Memory.Killed[s.last.ID].Replaces() || s.last.Reason == ReasonRestartingAll {
		return 0
	}
	return backoff(*s.last, v.o)
}

// restartWait is how long after the end of the newest instance of s the next may be made: its delay, or nothing where it did not
// end by itself (a probe has ended it, or it went with its sandbox, as in a reboot) and ran for at least as long.
func (v *view) restartWait(s *slot) time.Duration {
	delay := v.crashDelay(s)
	if (v.o.Memory.Killed[s.last.ID].Unhealthy() || !s.here) && ran(*s.last) >= delay {
		return 0
	}
	return delay
}

// restartAt is when the next instance of s may be made.
func (v *view) restartAt(s *slot) time.Time { return s.last.ended().Add(v.restartWait(s)) }

// nextDelay is the delay that will be in force after the end of the instance that follows the newest of s. The first that a
// probe ends does not count.
func (v *view) nextDelay(s *slot) time.Duration {
	if s.last == nil || v.changed(s) {
		return 0
	}
	if killed := v.o.Memory.Killed[s.last.ID]; killed.Replaces() || killed.Unhealthy() && s.last.Attempt == 0 {
		return 0
	}
	return min(max(firstBackoff(v.o), 2*v.crashDelay(s)), backoffMax(v.o))
}

// backoff is the delay after the end of an instance before the next may be made. The first restart is immediate.
func backoff(last Container, o Observed) time.Duration {
	if ran(last) >= backoffReset {
		return 0
	}
	if delay, known := o.Memory.Restarts[Instance{last.Name, last.Attempt}]; known {
		return delay
	}
	if last.Attempt == 0 {
		return 0
	}
	// The agent has not seen the earlier restarts; as many as there were count as crashes.
	return doubled(firstBackoff(o), int(last.Attempt)-1, backoffMax(o))
}

func firstBackoff(o Observed) time.Duration {
	if o.Node.BackoffFirst > 0 {
		return o.Node.BackoffFirst
	}
	return backoffFirst
}

func backoffMax(o Observed) time.Duration {
	if o.Node.BackoffMax > 0 {
		return o.Node.BackoffMax
	}
	return DefaultBackoffMax
}

// ran is how long an exited container ran.
func ran(c Container) time.Duration {
	if c.StartedAt.IsZero() || c.FinishedAt.IsZero() {
		return 0
	}
	return c.FinishedAt.Sub(c.StartedAt)
}

// ended is when an exited container ended, for measuring from.
func (c *Container) ended() time.Time {
	if c.EndedAt.IsZero() {
		return c.FinishedAt
	}
	return c.EndedAt
}
