package podstate

import (
	"testing"
	"time"
)

// TestLostAnswers checks that what a step takes away is unknown as soon as the step begins, whatever its answer is: it
// may have its effect at any time.
func TestLostAnswers(t *testing.T) {
	m := NewMemory()
	m.Prepared, m.PodSize, m.ClaimsPrepared, m.Volumes["data"] = true, &Size{}, true, Volume{}
	steps := []Step{UnprepareClaims{}, Unmount{Volume: "data"}, RemoveCgroup{}}
	for _, step := range steps {
		m.Began(step)
	}
	check := func(when string) {
		if m.Prepared || m.PodSize != nil || m.ClaimsPrepared || len(m.Volumes) > 0 {
			t.Errorf("%s: got prepared %v, size %v, claims %v, volumes %v, want none", when, m.Prepared, m.PodSize,
				m.ClaimsPrepared, m.Volumes)
		}
	}
	check("steps in flight")
	for _, step := range steps {
		m.Ended(Result{Step: step, Problem: &Problem{Message: "no answer"}}, time.Time{})
	}
	check("steps without an answer")
}
