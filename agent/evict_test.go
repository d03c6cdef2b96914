package agent_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/cri/fake"
	"github.com/nodelet/nodelet/kube/pods"
)

func withPriority(p int32) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.Spec.Priority = &p } }

// TestEvict: the pod ends within the eviction's grace, its object stays and says why, and it does not come back.
func TestEvict(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{IgnoresTerm: true})
		pod, other := apiPod("web"), apiPod("other")
		w.run(pod, other)
		w.sleep(time.Second)
		began := time.Now()
		<-w.life.Evict(t.Context(), pod.UID, agent.Eviction{Reason: "Evicted", Message: "no room", Grace: 7 * time.Second})
		if took := time.Since(began); took != 7*time.Second {
			t.Errorf("the eviction took %s", took)
		}
		w.sleep(time.Minute)
		st := w.status(pod)
		if st.Phase != corev1.PodFailed || st.Reason != "Evicted" || st.Message != "no room" {
			t.Errorf("status %s %s %q", st.Phase, st.Reason, st.Message)
		}
		w.checkRunning("other/app#0")
		if left := w.life.Active(t.Context()); len(left) != 1 || left[0].Name != "other" {
			t.Errorf("active: %v", left)
		}
		<-w.life.Evict(t.Context(), "nobody", agent.Eviction{})
	})
}

// TestWaves: lower priorities end first, a wave that is done early lets the next begin, one that takes too long as well.
func TestWaves(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{TermTakes: 3 * time.Second})
		low, high, critical := apiPod("low"), apiPod("high", withPriority(1000)), apiPod("critical", withPriority(2000000000))
		w.run(low, high, critical)
		w.sleep(time.Second)
		times := []plan.WaveTime{{Priority: 0, Grace: time.Minute}, {Priority: 500, Grace: time.Minute}, {Priority: 1000, Grace: 2 * time.Second},
			{Priority: 2000000000, Grace: time.Minute}}
		began := time.Now()
		var begun []time.Duration
		w.life.EndInWaves(t.Context(), times, 0, func(int) { begun = append(begun, time.Since(began)) })
		want := []time.Duration{0, 3 * time.Second, 3 * time.Second, 5 * time.Second}
		for i := range want {
			if begun[i] != want[i] {
				t.Errorf("wave %d began after %s, want %s", i, begun[i], want[i])
			}
		}
		if took := time.Since(began); took != 8*time.Second {
			t.Errorf("all waves took %s", took)
		}
		w.checkRunning()
		for _, pod := range []*corev1.Pod{low, high, critical} {
			if st := w.status(pod); st.Phase != corev1.PodFailed || st.Reason != plan.ReasonTerminated || st.Message != plan.MessageTerminated {
				t.Errorf("%s: %s %s %q", pod.Name, st.Phase, st.Reason, st.Message)
			}
		}
	})
}

// TestWavesOfANewLife: an agent that is started anew in the middle of a shutdown does not take a wave for over because it has not
// heard of its pods yet; a source that stays silent does not hold the shutdown up for good.
func TestWavesOfANewLife(t *testing.T) {
	times := []plan.WaveTime{{Priority: 0, Grace: time.Minute}, {Priority: 1000, Grace: time.Minute}}
	for name, after := range map[string]time.Duration{"heard soon": 5 * time.Second, "never heard": time.Hour} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Script("app", fake.Script{TermTakes: 3 * time.Second})
				low, high := apiPod("low"), apiPod("high", withPriority(1000))
				w.run(low, high)
				w.sleep(time.Second)
				w.set.Synced = false
				w.restart()
				began := time.Now()
				go func() {
					time.Sleep(after)
					w.change(func(set *pods.Set) { set.Synced = true })
				}()
				var begun []time.Duration
				w.life.EndInWaves(t.Context(), times, 0, func(int) { begun = append(begun, time.Since(began)) })
				first := min(after, times[0].Grace)
				if want := []time.Duration{first, first + 3*time.Second}; !slices.Equal(begun, want) {
					t.Errorf("the waves began after %s, want %s", begun, want)
				}
				w.checkRunning()
				time.Sleep(after)
			})
		})
	}
}

// TestDoomed: an agent that is started anew in the middle of a shutdown brings no ended pod back.
func TestDoomed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		low, high := apiPod("low"), apiPod("high", withPriority(1000))
		w.run(low, high)
		w.sleep(time.Second)
		w.doomed = func(pod *corev1.Pod) *agent.Eviction {
			if pod.Name != "low" {
				return nil
			}
			return &agent.Eviction{Reason: plan.ReasonTerminated, Message: plan.MessageTerminated, Grace: time.Minute}
		}
		w.restart()
		w.sleep(time.Minute)
		w.checkRunning("high/app#0")
		if st := w.status(low); st.Phase != corev1.PodFailed || st.Reason != plan.ReasonTerminated {
			t.Errorf("status %s %s", st.Phase, st.Reason)
		}
	})
}
