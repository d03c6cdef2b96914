package policy

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// State is what must be remembered from one call of Evaluate to the next. The zero value is the start.
type State struct {
	// since is when each threshold was first found crossed without interruption, by its index in the list.
	since map[int]time.Time
	// acted are the thresholds that have been acted on and whose minimum reclaim is not reached yet, by index.
	acted map[int]bool
	// last is when each condition last had a cause.
	last map[corev1.NodeConditionType]time.Time
}

// Decision is what follows from the levels.
type Decision struct {
	// Pressure says of each condition whether it holds; it outlives its cause by the transition period.
	Pressure Pressure
	// Act is the threshold for which resources must be freed now; nil for none.
	Act *Threshold
	// Again is when to evaluate again even if no level has changed: a grace or transition period ends then. Zero for
	// never.
	Again time.Time
}

// Evaluate compares levels with thresholds. A threshold whose level is not known is not crossed.
func Evaluate(all []Threshold, levels map[string]Level, s State,
	transition time.Duration, now time.Time) (Decision, State) {
	next := State{since: map[int]time.Time{}, acted: map[int]bool{}, last: map[corev1.NodeConditionType]time.Time{}}
	maps.Copy(next.last, s.last)
	v := Decision{Pressure: Pressure{}}
	for i := range all {
		t := &all[i]
		l, known := levels[t.Signal]
		if !known || !t.below(l, s.acted[i]) {
			continue
		}
		since, crossed := s.since[i]
		if !crossed {
			since = now
		}
		next.since[i] = since
		next.last[ConditionOf(t.Signal)] = now
		if due := since.Add(t.Grace); now.Before(due) {
			v.again(due)
			continue
		}
		next.acted[i] = true
		if v.Act == nil || before(t, v.Act) {
			v.Act = t
		}
	}
	for _, c := range Conditions {
		last, had := next.last[c]
		lasts := last.Equal(now) // the cause, so the transition period has not begun
		v.Pressure[c] = had && (lasts || now.Sub(last) < transition)
		if v.Pressure[c] && !lasts {
			v.again(last.Add(transition))
		}
	}
	return v, next
}

// again moves Again to an earlier time.
func (v *Decision) again(at time.Time) {
	if v.Again.IsZero() || at.Before(v.Again) {
		v.Again = at
	}
}

// before reports whether a threshold is acted on before another one: a hard threshold cannot wait for the grace period
// of the pod that was evicted last at a soft one, and memory cannot wait at all.
func before(t, other *Threshold) bool {
	if hard := t.Grace == 0; hard != (other.Grace == 0) {
		return hard
	}
	return OnMemory(t.Signal) && !OnMemory(other.Signal)
}

// Over reports whether the level of a threshold is above it by at least the minimum reclaim.
func Over(t *Threshold, levels map[string]Level) bool {
	l, known := levels[t.Signal]
	return !known || !t.below(l, true)
}
