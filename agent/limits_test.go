package agent_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/agent/eviction/policy"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// scratchPod has an emptyDir of one MiB at most.
func scratchPod(name string) *corev1.Pod {
	p := apiPod(name)
	limit := resource.MustParse("1Mi")
	source := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}
	p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: source}}
	return p
}

// TestOverrun checks that only pods with a limit are measured, and that a pod that exceeds its limit is evicted once,
// but not a pod that uses as much without a limit. A pod that cannot be measured is not evicted.
func TestOverrun(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var measured, held atomic.Int64
		var unknown atomic.Bool
		s := newShortage(w)
		s.storage = func(pods []*corev1.Pod) (all []policy.Storage) {
			measured.Add(1)
			for _, p := range pods {
				if p.Name != "limited" {
					t.Errorf("pod %s was measured, want only the one with a limit", p.Name)
				}
				all = append(all, policy.Storage{Volumes: map[string]int64{"scratch": held.Load()}})
			}
			if unknown.Load() {
				return make([]policy.Storage, len(pods))
			}
			return all
		}
		defer s.begin()()

		w.run(apiPod("free"))
		w.sleep(time.Minute)
		if n := measured.Load(); n != 0 {
			t.Errorf("measured %d times, want 0: no pod has a limit", n)
		}
		w.run(apiPod("free"), scratchPod("limited"))
		held.Store(1 << 20)
		w.sleep(time.Minute)
		unknown.Store(true)
		held.Store(1<<20 + 1)
		w.sleep(time.Minute)
		w.checkRunning("free/app#0", "limited/app#0")
		unknown.Store(false)
		w.sleep(time.Minute)
		w.checkRunning("free/app#0")
		st := w.status(scratchPod("limited"))
		const message = `Usage of EmptyDir volume "scratch" exceeds the limit "1Mi". `
		if st.Phase != corev1.PodFailed || st.Reason != "Evicted" || st.Message != message {
			t.Errorf("got status %+v, want Failed, Evicted, %q", st, message)
		}
		for _, c := range st.Conditions {
			if c.Type == corev1.DisruptionTarget {
				t.Error("a pod beyond its own limit: got a disruption condition, want none")
			}
		}
		if n := len(s.evictions()); n != 1 {
			t.Errorf("got %d events about evictions, want 1", n)
		}
	})
}

// TestOverrunWhileDeleted checks that a pod that exceeds a limit is ended, once, although it is being deleted with a
// long grace period.
func TestOverrunWhileDeleted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{IgnoresTerm: true})
		s := newShortage(w)
		s.storage = func(pods []*corev1.Pod) []policy.Storage {
			held := map[string]int64{"scratch": 1<<20 + 1}
			return slices.Repeat([]policy.Storage{{Volumes: held}}, len(pods))
		}
		pod := scratchPod("limited")
		w.run(pod)
		w.sleep(time.Second)
		w.delete(pod, time.Hour)
		w.sleep(time.Second)
		w.runtime.Inject(&fake.Fault{Verb: "RemovePodSandbox", Hang: true})
		defer s.begin()()
		w.sleep(time.Minute)
		w.checkRunning()
		if n := len(s.evictions()); n != 1 {
			t.Errorf("got %d events about evictions, want 1", n)
		}
	})
}
