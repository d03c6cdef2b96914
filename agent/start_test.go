package agent_test

import (
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// What a pod may cost the runtime, in calls. A pod has one container; the image is there.
const (
	maxStartCalls = 23
	maxStopCalls  = 20
)

// TestPodRuns: a pod is started with one call of each kind, in order, and its status says so; deleted, it goes without a trace.
func TestPodRuns(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.ResetCalls()
		pod := apiPod("web", withEmptyDir)
		w.run(pod)
		w.sleep(0)
		w.checkRunning("web/app#0")
		want := []string{"RunPodSandbox default/web#0", "CreateContainer app#0", "StartContainer"}
		if got := w.acts(); !slices.Equal(got, want) {
			t.Errorf("start made %q, want %q", got, want)
		}
		st := w.status(pod)
		app := shown(st, "app")
		if st.Phase != corev1.PodRunning || !ready(st) || st.PodIP == "" || app.State.Running == nil || app.RestartCount != 0 {
			t.Errorf("status: %+v", st)
		}
		id := w.runtime.Containers()[0].Id
		if to, err := os.Readlink(w.path("links/web_default_app-" + id + ".log")); to != w.path("logs/default_web_uid-web/app/0.log") {
			t.Errorf("log collectors are sent to %q, %v", to, err)
		}
		t.Logf("calls of a start: %d, %v", len(w.runtime.Calls()), w.runtime.Verbs())
		if n := len(w.runtime.Calls()); n > maxStartCalls {
			t.Errorf("a start took %d calls, more than %d: %v", n, maxStartCalls, w.runtime.Verbs())
		}

		w.runtime.ResetCalls()
		w.delete(pod, 0)
		w.sleep(0)
		w.checkNothingLeft()
		want = []string{"StopContainer", "StopPodSandbox", "RemovePodSandbox"}
		if got := w.acts(); !slices.Equal(got, want) {
			t.Errorf("end made %q, want %q", got, want)
		}
		t.Logf("calls of an end: %d, %v", len(w.runtime.Calls()), w.runtime.Verbs())
		if n := len(w.runtime.Calls()); n > maxStopCalls {
			t.Errorf("an end took %d calls, more than %d: %v", n, maxStopCalls, w.runtime.Verbs())
		}
	})
}
