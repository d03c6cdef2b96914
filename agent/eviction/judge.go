package eviction

import (
	"time"
)

// State is what must be remembered from one judgement to the next. The zero value is the beginning.
type State struct {
	// since is when each threshold was first found below its line in this spell, by its place in the list.
	since map[int]time.Time
	// acted are the thresholds that have been acted on and whose minimum reclaim has not been reached yet.
	acted map[int]bool
	// last is when each condition was last found.
	last [conditions]time.Time
}

// Verdict is what follows from the levels.
type Verdict struct {
	// Pressure is what the node's conditions tell; it outlives its cause by the transition period.
	Pressure Pressure
	// Act is the threshold for which something has to be freed now; nil for none.
	Act *Threshold
	// Again is when to judge again though no level has moved: a grace or transition period ends then. Zero for never.
	Again time.Time
}

// Judge holds levels against thresholds. A level that is not known is left as it was: out of the judgement.
func Judge(all []Threshold, levels map[string]Level, s State, transition time.Duration, now time.Time) (Verdict, State) {
	next := State{since: map[int]time.Time{}, acted: map[int]bool{}, last: s.last}
	var v Verdict
	for i := range all {
		t := &all[i]
		l, known := levels[t.Signal]
		if !known || !t.below(l, s.acted[i]) {
			continue
		}
		since, spell := s.since[i]
		if !spell {
			since = now
		}
		next.since[i] = since
		next.last[conditionOf(t.Signal)] = now
		if due := since.Add(t.Grace); now.Before(due) {
			v.again(due)
			continue
		}
		next.acted[i] = true
		if v.Act == nil || !first(v.Act) && first(t) {
			v.Act = t
		}
	}
	under := func(c condition) bool {
		last := next.last[c]
		if last.IsZero() || now.Sub(last) >= transition && !last.Equal(now) {
			return false
		}
		v.again(last.Add(transition))
		return true
	}
	v.Pressure = Pressure{Memory: under(memoryPressure), Disk: under(diskPressure), PID: under(pidPressure)}
	return v, next
}

// again notes when to look again at the latest.
func (v *Verdict) again(at time.Time) {
	if v.Again.IsZero() || at.Before(v.Again) {
		v.Again = at
	}
}

// first: memory comes before all else, for nothing can be compressed or waited for there.
func first(t *Threshold) bool { return conditionOf(t.Signal) == memoryPressure }

// Over tells whether the level of a threshold has come far enough above its line.
func Over(t *Threshold, levels map[string]Level) bool {
	l, known := levels[t.Signal]
	return !known || !t.below(l, true)
}
