package plan

import (
	"testing"
	"time"

	"github.com/nodelet/nodelet/agent/podstate"
)

// TestUnmountWaitsForMount checks which volumes of an ending pod wait for the mount that still runs: the volume itself,
// and any whose name is not known yet, such as a PersistentVolume that is mounted for the first time.
func TestUnmountWaitsForMount(t *testing.T) {
	pod := podOf(t, `{spec: {volumes: [
		{name: data, persistentVolumeClaim: {claimName: c}},
		{name: logs, persistentVolumeClaim: {claimName: d}},
		{name: conf, emptyDir: {}},
	]}}`)
	for name, tt := range map[string]struct {
		mounting string
		mounted  []string
		onDisk   []string
		want     []string
	}{
		"itself":                  {"data", []string{"data"}, []string{"conf", "data"}, []string{"conf"}},
		"of unknown name":         {"data", []string{"conf"}, []string{"conf", "pv-1"}, []string{"conf"}},
		"another of unknown name": {"data", []string{"logs"}, []string{"logs", "pv-1"}, []string{"logs"}},
		"of known name":           {"conf", nil, []string{"conf", "pv-1"}, []string{"pv-1"}},
		"refreshed":               {"data", []string{"data"}, []string{"data", "pv-2"}, []string{"pv-2"}},
	} {
		w := newWorld(podstate.Desired{Pod: pod, Stop: &podstate.Stop{Cause: podstate.StopDeleted}}, epoch)
		for _, volume := range tt.mounted {
			w.memory.Volumes[volume] = podstate.Volume{}
		}
		for _, volume := range tt.onDisk {
			w.volumes[volume] = true
		}
		w.memory.Began(podstate.Mount{Volume: tt.mounting})
		w.turn()
		var want []podstate.Step
		for _, volume := range tt.want {
			want = append(want, podstate.Unmount{Volume: volume})
		}
		if got := w.plan.Steps; len(got) != len(want) || got[0] != want[0] {
			t.Errorf("%s: got the steps %v, want %v", name, got, want)
		}
	}
}

// TestNoNewAttemptForReturningPod checks that the worker of a pod that returns waits until each sandbox has failed to
// be removed once, and tries none of them again meanwhile, although their back-off has ended.
func TestNoNewAttemptForReturningPod(t *testing.T) {
	a, b := podstate.RemoveSandbox{ID: "a"}, podstate.RemoveSandbox{ID: "b"}
	w := newWorld(podstate.Desired{
		Pod: podOf(t, `{}`), Returns: true, Stop: &podstate.Stop{Cause: podstate.StopOrphaned, Deadline: epoch},
	}, epoch)
	w.dir = true
	for _, s := range []podstate.RemoveSandbox{a, b} {
		w.sandboxes = append(w.sandboxes, podstate.Sandbox{ID: s.ID})
		w.memory.Ended(podstate.Result{Step: podstate.StopSandbox(s)}, epoch)
		w.memory.Began(s)
	}
	for i, s := range []podstate.RemoveSandbox{a, b} {
		w.memory.Ended(podstate.Result{Step: s, Problem: &podstate.Problem{Message: "busy"}}, w.now)
		w.now = w.now.Add(time.Minute) // longer than the back-off
		w.turn()
		if done := i == 1; w.plan.Done != done || len(w.plan.Steps) > 0 {
			t.Errorf("after %s has failed: got done %v, steps %v, want done %v, none", s.ID, w.plan.Done, w.plan.Steps, done)
		}
	}
}
