package plan

import (
	"testing"
	"time"
	"unsafe"

	"github.com/nodelet/nodelet/agent/podstate"
)

// TestWakeAfterClockSetBack plans two wake-ups: the end of a back-off that began before the clock was set back, and the
// renewal of a token, which has no monotonic time.
func TestWakeAfterClockSetBack(t *testing.T) {
	now := time.Now()
	retry := laterByWall(now.Add(time.Minute), 3*time.Hour)
	renewal := now.Add(time.Hour).Round(0)
	if left := retry.Sub(now); left != time.Minute || !retry.After(renewal) {
		t.Fatalf("got %s left until %s, want a minute, and a later time of day than %s", left, retry, renewal)
	}
	for _, wakes := range [][]time.Time{{renewal, retry}, {retry, renewal}} {
		p := &planner{State: &podstate.State{Observed: podstate.Observed{Now: now}}}
		for _, at := range wakes {
			p.wakeAt(at)
		}
		if left := p.plan.Wake.Sub(now); left != time.Minute {
			t.Errorf("wakes at %v: got the first in %s, want 1m0s", wakes, left)
		}
	}
}

// laterByWall returns at with d added to its time of day alone, as if it was taken before the clock was set back by d.
func laterByWall(at time.Time, d time.Duration) time.Time {
	at = at.Add(d)
	(*struct {
		wall      uint64
		monotonic time.Duration
	})(unsafe.Pointer(&at)).monotonic -= d
	return at
}
