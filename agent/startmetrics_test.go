package agent_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/cri/fake"
)

// TestDelayOfStart checks that the time in which init containers run or images are pulled, side by side too, is not
// part of the measured start of a pod.
func TestDelayOfStart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Publish(fake.RemoteImage{Name: "one:1", Takes: 20 * time.Second})
		w.runtime.Publish(fake.RemoteImage{Name: "two:1", Takes: 30 * time.Second})
		w.runtime.Script("setup", fake.Script{RunsFor: 40 * time.Second})
		w.run(apiPod("web", withInit("setup"), withSidecar("proxy"), func(pod *corev1.Pod) {
			second := container("second")
			pod.Spec.Containers[0].Image, second.Image = "one:1", "two:1"
			pod.Spec.Containers = append(pod.Spec.Containers, second)
		}))
		w.sleep(2 * time.Minute)
		w.checkRunning("web/proxy#0", "web/app#0", "web/second#0")
		if got, want := time.Duration(w.delayed.Load()).Round(time.Second), 70*time.Second; got != want {
			t.Errorf("got %v of pulls and init containers, want %v", got, want)
		}
	})
}

// TestKindsOfSync checks that the syncs of a pod count under the names of the kubelet's metric.
func TestKindsOfSync(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Minute)
		w.delete(pod, time.Second)
		w.sleep(time.Minute)
		var got []string
		w.synced.Range(func(kind, _ any) bool {
			got = append(got, kind.(string))
			return true
		})
		slices.Sort(got)
		if want := []string{"create", "kill", "sync", "terminated"}; !slices.Equal(got, want) {
			t.Errorf("got syncs %q, want %q", got, want)
		}
	})
}
