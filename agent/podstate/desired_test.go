package podstate

import (
	"testing"
	"time"
)

// TestStricter checks the merge of two stops: the stronger cause, the earlier deadline, and the reason of what ends the
// pod.
func TestStricter(t *testing.T) {
	soon := time.Unix(1000, 0)
	late := soon.Add(time.Minute)
	deleted := func(at time.Time) *Stop { return &Stop{Cause: StopDeleted, Deadline: at} }
	evicted := func(at time.Time) *Stop {
		return &Stop{Cause: StopEvicted, Deadline: at, Reason: "Evicted", Message: "memory", Own: true}
	}
	both := func(at time.Time) *Stop {
		return &Stop{Cause: StopDeleted, Deadline: at, Reason: "Evicted", Message: "memory", Own: true}
	}
	terminated := &Stop{Cause: StopEvicted, Deadline: soon, Reason: "Terminated", Message: "shutdown"}
	for name, tt := range map[string]struct{ first, next, want *Stop }{
		"none before":                {nil, deleted(late), deleted(late)},
		"none after":                 {evicted(late), nil, evicted(late)},
		"deleted, evicted earlier":   {deleted(late), evicted(soon), both(soon)},
		"deleted, evicted no sooner": {deleted(soon), evicted(soon), deleted(soon)},
		"deleted, evicted later":     {deleted(soon), evicted(late), deleted(soon)},
		"evicted, deleted later":     {evicted(soon), deleted(late), both(soon)},
		"evicted, deleted earlier":   {evicted(late), deleted(soon), both(soon)},
		"evicted, then shutdown":     {evicted(late), terminated, evicted(soon)},
	} {
		if got := tt.first.Stricter(tt.next); *got != *tt.want {
			t.Errorf("%s: got %+v, want %+v", name, *got, *tt.want)
		}
	}
}
