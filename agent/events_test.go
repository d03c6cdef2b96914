package agent_test

import (
	"testing"
	"time"

	"github.com/nodelet/nodelet/test/cri/fake"
)

// TestEventsAfterRestart checks that the events of a runtime that is restarted with them are used, and that the agent
// stops listing the pods often.
func TestEventsAfterRestart(t *testing.T) {
	for name, disabled := range map[string]func(r *fake.Runtime) *bool{
		"no event stream":     func(r *fake.Runtime) *bool { return &r.NoEvents },
		"empty event streams": func(r *fake.Runtime) *bool { return &r.EmptyEvents },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.end()
				*disabled(w.runtime) = true
				w.begin()
				w.run(apiPod("web"))
				w.sleep(time.Minute)
				w.runtime.Crash(false)
				*disabled(w.runtime) = false
				if err := w.runtime.Restart(); err != nil {
					t.Fatal(err)
				}
				w.sleep(time.Minute + 300*time.Millisecond)
				w.runtime.ResetCalls()
				w.sleep(2 * time.Minute)
				if n := w.runtime.Verbs()["ListPodSandbox"]; n > 3 {
					t.Errorf("lists in two minutes: got %d, want at most 3", n)
				}
				w.runtime.ExitContainer(w.runtime.Containers()[0].Id, 1, "")
				w.sleep(0)
				w.checkRunning("web/app#1")
			})
		})
	}
}
