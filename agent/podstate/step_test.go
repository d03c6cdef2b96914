package podstate

import (
	"testing"
	"time"
)

// TestKeys checks that steps which act on different things have different keys, even if their IDs and names are equal.
func TestKeys(t *testing.T) {
	seen := map[Key]Step{}
	for _, s := range []Step{
		Prepare{}, PrepareClaims{}, Mount{Volume: "x"}, CreateSandbox{}, EnsureImage{Container: "x"},
		EnsureImage{Volume: "x"}, CreateContainer{Name: "x"}, StartContainer{ID: "x"}, PostStart{ID: "x"},
		PreStop{ID: "x"}, StopContainer{ID: "x"}, RemoveContainer{ID: "x"}, MarkReset{}, StopSandbox{ID: "x"},
		RemoveSandbox{ID: "x"}, Resize{ID: "x"}, ResizePod{}, Unmount{Volume: "x"}, UnprepareClaims{},
		RemoveCgroup{}, RemoveDir{},
	} {
		if other := seen[s.Key()]; other != nil {
			t.Errorf("%v and %v: got the same key %v", s, other, s.Key())
		}
		seen[s.Key()] = s
	}
	if kinds := int(KindRemoveDir) + 1; len(seen) != kinds {
		t.Errorf("got %d keys, want one for each of %d kinds", len(seen), kinds)
	}
}

// TestSameStep checks that a step of two plans is the same, even if time has passed between the plans.
func TestSameStep(t *testing.T) {
	stop := StopContainer{ID: "x", Cause: CauseProbe, Reason: "unhealthy", Deadline: time.Unix(1, 0)}
	later, other := stop, stop
	later.Deadline = time.Unix(2, 0)
	other.Cause = CauseEnd
	if !SameStep(stop, later) {
		t.Error("stops with other deadlines: got different steps, want the same")
	}
	if SameStep(stop, other) {
		t.Error("stops for other causes: got the same step, want different ones")
	}
	up, down := Resize{ID: "x", To: Size{Memory: 2}}, Resize{ID: "x", To: Size{Memory: 1}, LowersMemory: true}
	if SameStep(up, down) {
		t.Error("resizes to other sizes: got the same step, want different ones")
	}
}

// TestOvertakes checks that only a stop with an earlier deadline overtakes a step in flight.
func TestOvertakes(t *testing.T) {
	slow, fast := StopContainer{ID: "x", Deadline: time.Unix(9, 0)}, StopContainer{ID: "x", Deadline: time.Unix(1, 0)}
	for _, c := range []struct {
		step, running Step
		want          bool
	}{
		{fast, slow, true}, {slow, fast, false}, {slow, slow, false}, {Prepare{}, Prepare{}, false}, {fast, Prepare{}, false},
	} {
		if got := Overtakes(c.step, c.running); got != c.want {
			t.Errorf("%v over %v: got %v, want %v", c.step, c.running, got, c.want)
		}
	}
}

// TestEmptyRecall checks that the zero Recall can be used and is empty.
func TestEmptyRecall(t *testing.T) {
	var r Recall
	key := Prepare{}.Key()
	if _, failed := r.Failure(key); failed || r.Prepared() || r.InFlight(key) != nil || r.Reported() != nil ||
		len(r.Running()) > 0 || r.MountFails() || r.reportedContainer("app") != nil {
		t.Error("got something from an empty memory, want nothing")
	}
}
