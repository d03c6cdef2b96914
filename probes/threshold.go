package probes

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// count turns attempts into a result: the result changes after as many equal attempts in a row as the threshold says.
type count struct {
	last Result
	run  int32
	// held: the result cannot change any more for this instance of the container. A startup probe has come to an end, or a
	// liveness probe has failed, so that the container will be replaced.
	held bool
}

// add counts one attempt, success or failure, and returns the result after it, now being the one before.
func (c *count) add(kind Kind, probe *corev1.Probe, now, attempt Result) Result {
	if c.last != attempt {
		c.last, c.run = attempt, 0
	}
	c.run++
	threshold := orDefault(probe.FailureThreshold, 3)
	if attempt == Success {
		threshold = orDefault(probe.SuccessThreshold, 1)
	}
	if c.run < threshold {
		return now
	}
	c.held = kind == Startup || kind == Liveness && attempt == Failure
	return attempt
}

// initial returns the result of a probe before its first attempt.
func initial(kind Kind, known Result) Result {
	if known == Unknown && kind == Liveness {
		return Success
	}
	return known
}

func orDefault(v, otherwise int32) int32 {
	if v <= 0 {
		return otherwise
	}
	return v
}

func seconds(v, otherwise int32) time.Duration {
	return time.Duration(orDefault(v, otherwise)) * time.Second
}

func period(p *corev1.Probe) time.Duration  { return seconds(p.PeriodSeconds, 10) }
func timeout(p *corev1.Probe) time.Duration { return seconds(p.TimeoutSeconds, 1) }

// firstWait returns how long after now a container is first probed. A new one is probed when its initial delay is over,
// and for liveness not before it is one period old: it has FailureThreshold periods to start. The kubelet gives it that
// or up to one less. One whose result an earlier process knew keeps its rhythm; any other is probed now.
func firstWait(t *Target, now time.Time) time.Duration {
	delay := time.Duration(t.Probe.InitialDelaySeconds) * time.Second
	if t.Kind == Liveness {
		delay = max(delay, period(t.Probe))
	}
	wait := min(delay, t.StartedAt.Add(delay).Sub(now)) // min: a wall clock set back must not make it longer
	if wait >= 0 {
		return wait
	}
	if late := -wait; t.Known != Unknown && late >= period(t.Probe) {
		return period(t.Probe) - late%period(t.Probe)
	}
	return 0
}

// early reports whether a first attempt comes so early that only its success counts: a startup probe is tried at once,
// so that a fast container is started early, but a slow one has FailureThreshold periods to start.
func early(t *Target, at time.Time) bool {
	return t.Kind == Startup && at.Sub(t.StartedAt) < period(t.Probe)
}
