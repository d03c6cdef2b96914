package agent_test

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/shutdown"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// TestCompletedPodIsEvicted checks that a pod whose app containers have ended by themselves keeps their result if the
// node ends it before its sidecars have stopped, also if the agent restarts meanwhile.
func TestCompletedPodIsEvicted(t *testing.T) {
	for _, c := range []struct {
		name     string
		exitCode int32
		want     corev1.PodPhase
	}{{"success", 0, corev1.PodSucceeded}, {"failure", 3, corev1.PodFailed}} {
		for _, restarts := range []bool{false, true} {
			name := c.name
			if restarts {
				name += " and a restart"
			}
			t.Run(name, func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					w.runtime.Script("app", fake.Script{RunsFor: 5 * time.Second, ExitCode: c.exitCode})
					w.runtime.Script("proxy", fake.Script{TermTakes: 20 * time.Second})
					pod := apiPod("job", withRestart(corev1.RestartPolicyNever), withSidecar("proxy"))
					w.run(pod)
					w.sleep(10 * time.Second)
					w.agent.Evict(t.Context(), pod.UID, agent.Eviction{
						Reason: shutdown.Reason, Message: shutdown.Message, Grace: 10 * time.Second,
					})
					if restarts {
						w.sleep(time.Second)
						w.restart()
					}
					w.sleep(time.Minute)
					w.checkRunning()
					st := w.status(pod)
					if st.Phase != c.want || st.Reason != "" {
						t.Errorf("got phase %s with reason %q, want %s without", st.Phase, st.Reason, c.want)
					}
					if got := podutil.Condition(st.Conditions, corev1.DisruptionTarget); got != nil {
						t.Errorf("got the condition %+v, want no disruption", got)
					}
				})
			})
		}
	}
}

// TestCompletedPodPassesItsDeadline checks that a pod whose app containers have ended by themselves in time keeps their
// result if its deadline passes before its sidecars have stopped, or while no agent runs.
func TestCompletedPodPassesItsDeadline(t *testing.T) {
	for name, restarts := range map[string]bool{"sidecar stops": false, "agent was away": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Script("app", fake.Script{RunsFor: 50 * time.Second})
				w.runtime.Script("proxy", fake.Script{TermTakes: 20 * time.Second})
				pod := apiPod("job", withRestart(corev1.RestartPolicyNever), withSidecar("proxy"), func(pod *corev1.Pod) {
					pod.Spec.ActiveDeadlineSeconds = ptr(int64(60))
				})
				w.run(pod)
				w.sleep(40 * time.Second)
				if restarts {
					w.end()
					w.sleep(30 * time.Second)
					w.begin()
				}
				w.sleep(time.Minute)
				w.checkRunning()
				if st := w.status(pod); st.Phase != corev1.PodSucceeded || st.Reason != "" {
					t.Errorf("got phase %s with reason %q, want %s without", st.Phase, st.Reason, corev1.PodSucceeded)
				}
			})
		})
	}
}

// TestCompletedPodIsDoomed checks that a pod that has ended by itself keeps its result if the agent restarts while the
// node shuts down: when its status is in the API server, when it is not, and while its sidecars are being stopped.
func TestCompletedPodIsDoomed(t *testing.T) {
	for name, c := range map[string]struct {
		sidecar, amnesia, evicted bool
	}{
		"published":                       {},
		"not published":                   {amnesia: true},
		"with a sidecar":                  {sidecar: true},
		"with a sidecar that was stopped": {sidecar: true, evicted: true},
	} {
		for code, want := range map[int32]corev1.PodPhase{0: corev1.PodSucceeded, 3: corev1.PodFailed} {
			t.Run(fmt.Sprintf("%s, exit code %d", name, code), func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					w.runtime.Script("app", fake.Script{RunsFor: 5 * time.Second, ExitCode: code})
					w.runtime.Script("proxy", fake.Script{TermTakes: 20 * time.Second})
					w.amnesia = c.amnesia
					pod := apiPod("job", withRestart(corev1.RestartPolicyNever))
					if c.sidecar {
						withSidecar("proxy")(pod)
					}
					w.run(pod)
					w.sleep(10 * time.Second)
					down := agent.Eviction{Reason: shutdown.Reason, Message: shutdown.Message, Grace: 10 * time.Second}
					if c.evicted {
						w.agent.Evict(t.Context(), pod.UID, down)
						w.sleep(time.Second)
					}
					w.doomed = func(*corev1.Pod) *agent.Eviction { return &down }
					w.restart()
					w.agent.Evict(t.Context(), pod.UID, down)
					w.sleep(time.Minute)
					w.checkRunning()
					st := w.status(pod)
					if st.Phase != want || st.Reason != "" {
						t.Errorf("got phase %s with reason %q, want %s without", st.Phase, st.Reason, want)
					}
					if got := podutil.Condition(st.Conditions, corev1.DisruptionTarget); got != nil {
						t.Errorf("got the condition %+v, want no disruption", got)
					}
				})
			})
		}
	}
}

// TestEvictedPodEndsWithZero checks that a pod has failed if the node ends it, also if its containers return 0 then,
// and if the agent restarts before its sidecars have stopped, whether or not the node still shuts down.
func TestEvictedPodEndsWithZero(t *testing.T) {
	for name, c := range map[string]struct{ restarts, doomed bool }{
		"at once":                  {},
		"and a restart":            {restarts: true},
		"and a restart, shut down": {restarts: true, doomed: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Script("app", fake.Script{CleanStop: true})
				w.runtime.Script("proxy", fake.Script{TermTakes: 20 * time.Second})
				pod := apiPod("job", withRestart(corev1.RestartPolicyNever))
				if c.restarts {
					withSidecar("proxy")(pod)
				}
				w.run(pod)
				w.sleep(10 * time.Second)
				down := agent.Eviction{Reason: shutdown.Reason, Message: shutdown.Message, Grace: 10 * time.Second}
				w.agent.Evict(t.Context(), pod.UID, down)
				if c.doomed {
					w.doomed = func(*corev1.Pod) *agent.Eviction { return &down }
				}
				if c.restarts {
					w.sleep(time.Second)
					w.restart()
				}
				w.sleep(time.Minute)
				if st := w.status(pod); st.Phase != corev1.PodFailed || st.Reason != shutdown.Reason {
					t.Errorf("got phase %s with reason %q, want Failed, %s", st.Phase, st.Reason, shutdown.Reason)
				}
			})
		})
	}
}

// TestProbesOfEndedPod checks that the probes of a pod are counted while it runs, and not any more after it has ended,
// although its object stays.
func TestProbesOfEndedPod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{RunsFor: 30 * time.Second})
		w.run(apiPod("job", withRestart(corev1.RestartPolicyNever), func(pod *corev1.Pod) {
			pod.Spec.Containers[0].ReadinessProbe = execProbe("ready")
		}))
		for _, counted := range []bool{true, false} {
			w.sleep(20 * time.Second)
			text := httptest.NewRecorder()
			for _, m := range w.agent.exporter.Mounts() {
				if m.Path == "/metrics/probes" {
					m.Handler.ServeHTTP(text, httptest.NewRequest("GET", m.Path, nil))
				}
			}
			for _, family := range []string{"prober_probe_total{", "prober_probe_duration_seconds_count{"} {
				if got := strings.Contains(text.Body.String(), "\n"+family); got != counted {
					t.Errorf("the pod runs: %v: got %s: %v in\n%s", counted, family, got, text.Body)
				}
			}
		}
	})
}
