package agent_test

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// gone waits until nothing is left of a pod that is being deleted, and returns the time that took, to the second.
func (w *world) gone(pod *corev1.Pod) time.Duration {
	w.t.Helper()
	began := time.Now()
	w.sleep(0)
	for range 600 {
		w.mu.Lock()
		_, there := w.set.Pods[pod.UID]
		w.mu.Unlock()
		if !there && len(w.runtime.Sandboxes()) == 0 {
			break
		}
		w.sleep(time.Second)
	}
	w.checkNothingLeft()
	return time.Since(began)
}

// TestGraceShortened checks that a deletion with a shorter grace period replaces the stop in progress, and that one
// with a longer grace period changes nothing.
func TestGraceShortened(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{IgnoresTerm: true})
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Second)
		w.delete(pod, 60*time.Second)
		w.sleep(10 * time.Second)
		w.delete(pod, 300*time.Second)
		w.sleep(10 * time.Second)
		w.checkRunning("web/app#0")
		if n := w.runtime.Verbs()["StopContainer"]; n != 1 {
			t.Errorf("got %d calls of StopContainer before the grace was shortened, want 1", n)
		}
		w.delete(pod, 5*time.Second)
		if took := w.gone(pod); took != 5*time.Second {
			t.Errorf("with a grace of 5 s left, the pod went after %v, want 5s", took)
		}
		if n := w.runtime.Verbs()["StopContainer"]; n != 2 {
			t.Errorf("got %d calls of StopContainer in all, want 2", n)
		}
	})
}

// TestNoGrace checks that a pod that ends with no grace period gets one second for its preStop hook, and then two.
func TestNoGrace(t *testing.T) {
	noGrace := func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = ptr(int64(0)) }
	for _, tt := range []struct {
		name string
		end  func(w *world, pod *corev1.Pod)
		pod  *corev1.Pod
	}{
		{"deleted", func(w *world, pod *corev1.Pod) { w.delete(pod, 0) }, apiPod("web", withPreStop)},
		{"removed", func(w *world, pod *corev1.Pod) { w.remove(pod.UID) }, apiPod("web", withPreStop, noGrace)},
		{"evicted", func(w *world, pod *corev1.Pod) {
			w.agent.Evict(w.t.Context(), pod.UID, agent.Eviction{Reason: "Evicted"})
		}, apiPod("web", withPreStop)},
		{"past its deadline", func(w *world, _ *corev1.Pod) { w.sleep(59 * time.Second) },
			apiPod("web", withPreStop, noGrace, func(pod *corev1.Pod) {
				pod.Spec.ActiveDeadlineSeconds = ptr(int64(60))
			})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Script("app", fake.Script{IgnoresTerm: true})
				w.commandsEnd(fake.ExecOutcome{Takes: time.Minute})
				w.run(tt.pod)
				w.sleep(time.Second)
				tt.end(w, tt.pod)
				w.sleep(2 * time.Second)
				w.checkRunning("web/app#0")
				w.sleep(time.Second)
				w.checkRunning()
				if n := w.runtime.Verbs()["ExecSync"]; n != 1 {
					t.Errorf("the preStop hook ran %d times, want once", n)
				}
			})
		})
	}
}

// TestDeleteWhilePulling checks that a deletion cancels an image pull, and that the pod is gone at once.
func TestDeleteWhilePulling(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Publish(fake.RemoteImage{Name: "huge:1", Takes: anHour})
		pod := apiPod("web", func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "huge:1" })
		w.run(pod)
		w.sleep(time.Minute)
		if st := w.status(pod); st.Phase != corev1.PodPending || containerStatus(st, "app").State.Waiting == nil {
			t.Errorf("while pulling: got %+v, want a pending pod with a waiting container", st)
		}
		w.delete(pod, 30*time.Second)
		if took := w.gone(pod); took != 0 {
			t.Errorf("the pod went after %v, want at once", took)
		}
		if failed := w.eventsWith("Failed"); len(failed) != 0 {
			t.Errorf("events about failures: got %q, want none", failed)
		}
	})
}

// TestDeleteWhileInitRuns checks that the init container is stopped, and that no later container is created.
func TestDeleteWhileInitRuns(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("setup", fake.Script{TermTakes: 3 * time.Second})
		pod := apiPod("web", withInit("setup"))
		w.run(pod)
		w.sleep(time.Minute)
		w.checkRunning("web/setup#0")
		w.delete(pod, 30*time.Second)
		if took := w.gone(pod); took != 3*time.Second {
			t.Errorf("the pod went after %v, want 3s", took)
		}
		if acts := w.acts(); slices.Contains(acts, "CreateContainer app#0") {
			t.Errorf("got calls %q, want no app container", acts)
		}
	})
}

// TestPreStop checks that the hook runs before the container is stopped and uses its grace period, and that the
// container gets the rest of it.
func TestPreStop(t *testing.T) {
	for _, c := range []struct {
		name        string
		hook, grace time.Duration
		took        time.Duration
	}{
		{"in time", 10 * time.Second, 30 * time.Second, 30 * time.Second},
		{"until the container is killed", 31 * time.Second, 30 * time.Second, 32 * time.Second},
		{"too long", 60 * time.Second, 30 * time.Second, 32 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Script("app", fake.Script{IgnoresTerm: true})
				w.commandsEnd(fake.ExecOutcome{Takes: c.hook})
				pod := apiPod("web", withPreStop)
				w.run(pod)
				w.sleep(time.Second)
				w.delete(pod, c.grace)
				if took := w.gone(pod); took != c.took {
					t.Errorf("the pod went after %v, want %v", took, c.took)
				}
				if acts := w.acts(); strings.Index(strings.Join(acts, " "), "ExecSync") > strings.Index(strings.Join(acts, " "),
					"StopContainer") {
					t.Errorf("got calls %q, want the hook before StopContainer", acts)
				}
				if failed := w.eventsWith("FailedPreStopHook"); (len(failed) > 0) != (c.hook > c.took) {
					t.Errorf("events about the hook: got %q", failed)
				}
			})
		})
	}
}

// TestPreStopHooksRunAtOnce checks that the preStop hooks of all containers run at the same time, also those of
// sidecars, which are stopped one after the other; and that each runs once.
func TestPreStopHooksRunAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commandsEnd(fake.ExecOutcome{Takes: 6 * time.Second})
		pod := apiPod("web", withPreStop, withSidecar("mesh"), withSidecar("logs"), func(pod *corev1.Pod) {
			for i := range pod.Spec.InitContainers {
				pod.Spec.InitContainers[i].Lifecycle = &corev1.Lifecycle{
					PreStop: &corev1.LifecycleHandler{Exec: command("drain")},
				}
			}
		})
		w.run(pod)
		w.sleep(time.Second)
		w.delete(pod, 30*time.Second)
		if took := w.gone(pod); took != 6*time.Second {
			t.Errorf("the pod went after %v, want 6s", took)
		}
		if n := w.runtime.Verbs()["ExecSync"]; n != 3 {
			t.Errorf("got %d hooks, want 3", n)
		}
	})
}

// TestHookOfWaitingSidecar checks that the preStop hook of a sidecar that waits for others ends with its container, and
// not with the grace period.
func TestHookOfWaitingSidecar(t *testing.T) {
	mesh := func(hook *corev1.LifecycleHandler) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			withSidecar("mesh")(pod)
			pod.Spec.InitContainers[0].Lifecycle = &corev1.Lifecycle{PreStop: hook}
		}
	}
	t.Run("container is killed", func(t *testing.T) {
		inWorld(t, func(t *testing.T, w *world) {
			w.runtime.Script("app", fake.Script{IgnoresTerm: true})
			w.runtime.Script("mesh", fake.Script{IgnoresTerm: true})
			w.commandsEnd(fake.ExecOutcome{Takes: 31 * time.Second})
			pod := apiPod("web", mesh(&corev1.LifecycleHandler{Exec: command("drain")}))
			w.run(pod)
			w.sleep(time.Second)
			w.delete(pod, 30*time.Second)
			if took := w.gone(pod); took != 32*time.Second {
				t.Errorf("the pod went after %v, want 32s", took)
			}
			if failed := w.eventsWith("FailedPreStopHook"); len(failed) != 0 {
				t.Errorf("got events %q about a hook that has ended in time, want none", failed)
			}
			if n := w.runtime.Verbs()["ExecSync"]; n != 1 {
				t.Errorf("the hook ran %d times, want once", n)
			}
		})
	})
	t.Run("container exits", func(t *testing.T) {
		inWorld(t, func(t *testing.T, w *world) {
			w.runtime.Script("app", fake.Script{TermTakes: 5 * time.Second})
			w.runtime.Script("mesh", fake.Script{RunsFor: 3 * time.Second})
			hook := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 600}}
			pod := apiPod("web", mesh(hook), func(pod *corev1.Pod) {
				pod.Spec.TerminationGracePeriodSeconds = ptr(int64(900))
			})
			w.run(pod)
			w.sleep(time.Second)
			w.remove(pod.UID)
			if took := w.gone(pod); took != 5*time.Second {
				t.Errorf("the pod went after %v, want 5s: with its last container", took)
			}
		})
	})
}

// TestDeleteWhilePreStopSleeps checks that a shorter grace period also takes effect while the hook runs.
func TestDeleteWhilePreStopSleeps(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commandsEnd(fake.ExecOutcome{Takes: anHour})
		pod := apiPod("web", withPreStop)
		w.run(pod)
		w.sleep(time.Second)
		w.delete(pod, 600*time.Second)
		w.sleep(10 * time.Second)
		w.checkRunning("web/app#0")
		w.delete(pod, 5*time.Second)
		if took := w.gone(pod); took > 7*time.Second {
			t.Errorf("with a grace of 5 s left, the pod went after %v, want at most 7s", took)
		}
		if n := w.runtime.Verbs()["ExecSync"]; n != 1 {
			t.Errorf("the preStop hook ran %d times, want once", n)
		}
	})
}

// TestHookIsOverBeforeAShorterStop checks that a stop that overtakes another goes on as soon as the preStop hook of the
// first one has ended.
func TestHookIsOverBeforeAShorterStop(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commandsEnd(fake.ExecOutcome{Takes: 12 * time.Second})
		pod := apiPod("web", withPreStop)
		w.run(pod)
		w.sleep(time.Second)
		w.delete(pod, 600*time.Second)
		w.sleep(10 * time.Second)
		w.delete(pod, 300*time.Second)
		if took := w.gone(pod); took != 2*time.Second {
			t.Errorf("the pod went after %v, want 2s, when the hook has ended", took)
		}
		if n := w.runtime.Verbs()["ExecSync"]; n != 1 {
			t.Errorf("the preStop hook ran %d times, want once", n)
		}
		if failed := w.eventsWith("FailedPreStopHook"); len(failed) != 0 {
			t.Errorf("got events %q, want none about the hook", failed)
		}
	})
}

// TestPreStopRunsOnce checks that a preStop hook that has ended does not run again, whatever becomes of the stop, that
// one which the runtime could not run is tried again, and that there is an event for each reason of the stop.
func TestPreStopRunsOnce(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(w *world, pod *corev1.Pod)
		took time.Duration
		// asked is how often the runtime is asked to run the hook.
		asked int
		// killing are the beginnings of the messages of the Killing events.
		killing []string
	}{
		{"shorter stop", func(w *world, pod *corev1.Pod) {
			w.delete(pod, 600*time.Second)
			w.sleep(10 * time.Second)
			w.delete(pod, 30*time.Second)
		}, 30 * time.Second, 1, []string{"Stopping"}},
		{"failed stop", func(w *world, pod *corev1.Pod) {
			w.runtime.Inject(&fake.Fault{Verb: "StopContainer", Times: 1, Delay: time.Second, Err: errors.New("not now")})
			w.delete(pod, 30*time.Second)
		}, 30 * time.Second, 1, []string{"Stopping"}},
		{"runtime is away", func(w *world, pod *corev1.Pod) {
			w.runtime.Inject(&fake.Fault{Verb: "ExecSync", Times: 2, Err: status.Error(codes.Unavailable, "no server")})
			w.delete(pod, 30*time.Second)
		}, 30 * time.Second, 3, []string{"Stopping"}},
		{"runtime is away for long", func(w *world, pod *corev1.Pod) {
			w.runtime.Inject(&fake.Fault{Verb: "ExecSync", Err: status.Error(codes.Unavailable, "no server")})
			w.delete(pod, 10*time.Second)
		}, 12 * time.Second, 4, []string{"Stopping"}},
		{"another reason", func(w *world, pod *corev1.Pod) {
			w.changeSpec(pod, func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "other:1" })
			w.sleep(time.Second)
			w.delete(pod, 20*time.Second)
		}, 20 * time.Second, 1, []string{"Container app definition changed", "Stopping"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Script("app", fake.Script{IgnoresTerm: true})
				w.commandsEnd(fake.ExecOutcome{Takes: 2 * time.Second})
				pod := apiPod("web", withPreStop)
				w.run(pod)
				w.sleep(time.Second)
				tt.end(w, pod)
				if took := w.gone(pod); took != tt.took {
					t.Errorf("the pod went after %v, want %v", took, tt.took)
				}
				if n := w.runtime.Verbs()["ExecSync"]; n != tt.asked {
					t.Errorf("the runtime was asked to run the preStop hook %d times, want %d", n, tt.asked)
				}
				same := func(e, want string) bool { return strings.Contains(e, "Killing "+want) }
				if all := w.eventsWith("Killing"); !slices.EqualFunc(all, tt.killing, same) {
					t.Errorf("got the events %q, want %q", all, tt.killing)
				}
			})
		})
	}
}

// TestRuntimeRestartsInPreStop checks that a preStop hook whose command was under way when the runtime restarted does
// not run again: SIGTERM follows when the runtime is back. One that was due while the runtime was away runs then.
func TestRuntimeRestartsInPreStop(t *testing.T) {
	for name, tt := range map[string]struct {
		// began is how long before the end of the runtime the stop begins; atMost is how long it takes in all.
		began, atMost time.Duration
	}{
		"cut off":   {10 * time.Second, 30 * time.Second},
		"not asked": {-time.Second, 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.commandsEnd(fake.ExecOutcome{Takes: 20 * time.Second})
				pod := apiPod("web", withPreStop)
				w.run(pod)
				w.sleep(time.Second)
				time.AfterFunc(time.Minute, func() { w.runtime.Crash(false) })
				time.AfterFunc(time.Minute+5*time.Second, func() {
					if err := w.runtime.Restart(); err != nil {
						t.Error(err)
					}
				})
				time.Sleep(time.Minute - tt.began)
				w.delete(pod, time.Minute)
				if took := w.gone(pod); took > tt.atMost {
					t.Errorf("the pod went after %v, want at most %v", took, tt.atMost)
				}
				if n := w.runtime.Verbs()["ExecSync"]; n != 1 {
					t.Errorf("the preStop hook ran %d times, want once", n)
				}
			})
		})
	}
}

// TestDrainedContainerIsStopped checks that a container whose liveness probe has failed is stopped when its
// preStop hook has ended, although the probe succeeds again: what the hook has drained must not run on.
func TestDrainedContainerIsStopped(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var draining atomic.Bool
		w.runtime.OnExec(func(_ string, command []string) fake.ExecOutcome {
			if command[0] == "drain" {
				draining.Store(true)
				return fake.ExecOutcome{Takes: 20 * time.Second}
			}
			return fake.ExecOutcome{ExitCode: map[bool]int32{false: 1}[draining.Load()]}
		})
		pod := apiPod("web", withPreStop, func(pod *corev1.Pod) {
			pod.Spec.Containers[0].LivenessProbe = execProbe("healthy")
		})
		w.run(pod)
		w.sleep(time.Minute)
		w.checkRunning("web/app#1")
	})
}

// TestGraceGoesOnAfterRestart checks that restarts of the agent do not lengthen the grace period of a pod that ends.
func TestGraceGoesOnAfterRestart(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(w *world, pod *corev1.Pod)
		pod  *corev1.Pod
	}{
		{"deleted", func(w *world, pod *corev1.Pod) { w.delete(pod, 30*time.Second) }, apiPod("web")},
		{"removed from the API", func(w *world, pod *corev1.Pod) { w.remove(pod.UID) }, apiPod("web")},
		{"deleted, then removed from the API", func(w *world, pod *corev1.Pod) {
			w.delete(pod, 30*time.Second)
			w.sleep(0)
			w.end()
			w.remove(pod.UID)
			w.begin()
		}, apiPod("web")},
		{"manifest removed", func(w *world, pod *corev1.Pod) { w.remove(pod.UID) }, staticPod("web", "0123")},
		{"manifest removed while the agent was away", func(w *world, pod *corev1.Pod) {
			w.end()
			w.remove(pod.UID)
			w.begin()
		}, staticPod("web", "0123")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Script("app", fake.Script{IgnoresTerm: true})
				w.run(tt.pod)
				w.sleep(time.Second)
				began := time.Now()
				tt.end(w, tt.pod)
				for range 2 {
					w.sleep(10 * time.Second)
					w.restart()
				}
				w.checkRunning("web/app#0")
				w.gone(tt.pod)
				if took := time.Since(began); took != 30*time.Second {
					t.Errorf("the pod went after %v, want 30s", took)
				}
			})
		})
	}
}

// TestGraceGoesOnAfterClockSetForward checks that the next run of the agent leaves a pod the rest of its grace period,
// also if the clock was set forward meanwhile: then the recorded time of day has passed.
func TestGraceGoesOnAfterClockSetForward(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{IgnoresTerm: true})
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Second)
		began := time.Now()
		w.delete(pod, 30*time.Second)
		w.sleep(10 * time.Second)
		w.end()
		record := w.path("pods/" + string(pod.UID) + "/nodelet-stop.json")
		text, err := os.ReadFile(record)
		if err != nil {
			t.Fatal(err)
		}
		deadline := began.Add(30 * time.Second)
		behind := strings.ReplaceAll(string(text), stamp(t, deadline), stamp(t, deadline.Add(-4*time.Hour)))
		if behind == string(text) {
			t.Fatalf("got the record %s, want the deadline %s in it", text, stamp(t, deadline))
		}
		if err := os.WriteFile(record, []byte(behind), 0o600); err != nil {
			t.Fatal(err)
		}
		w.begin()
		w.gone(pod)
		if took := time.Since(began); took != 30*time.Second {
			t.Errorf("the pod went after %v, want 30s", took)
		}
	})
}

// stamp returns a time as JSON has it.
func stamp(t *testing.T, at time.Time) string {
	text, err := json.Marshal(at)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestReturnedPodHasItsWholeGrace checks that the next end of a pod whose manifest was put back before it ended does
// not go on with the first one.
func TestReturnedPodHasItsWholeGrace(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{IgnoresTerm: true})
		pod := staticPod("web", "0123")
		w.run(pod)
		w.sleep(time.Second)
		w.remove(pod.UID)
		w.sleep(time.Second)
		w.end()
		w.run(pod)
		w.begin()
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
		w.end()
		w.remove(pod.UID)
		began := time.Now()
		w.begin()
		w.gone(pod)
		if took := time.Since(began); took != 30*time.Second {
			t.Errorf("the pod went after %v, want 30s", took)
		}
	})
}

// TestOrphanPreStop checks that the hook of a container that no source knows any more runs: the runtime has recorded
// it.
func TestOrphanPreStop(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := staticPod("web", "0123", withPreStop)
		w.run(pod)
		w.sleep(time.Second)
		w.end()
		w.remove(pod.UID)
		w.begin()
		w.sleep(time.Minute)
		w.checkNothingLeft()
		if n := w.runtime.Verbs()["ExecSync"]; n != 1 {
			t.Errorf("the hook ran %d times, want once", n)
		}
	})
}

// TestSidecarsStopLast checks that app containers end first, and then the sidecars in reverse order.
func TestSidecarsStopLast(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for _, name := range []string{"app", "logs", "proxy"} {
			w.runtime.Script(name, fake.Script{TermTakes: 2 * time.Second})
		}
		pod := apiPod("web", withSidecar("proxy"), withSidecar("logs"))
		w.run(pod)
		w.sleep(time.Second)
		w.checkRunning("web/proxy#0", "web/logs#0", "web/app#0")
		w.delete(pod, 30*time.Second)
		w.sleep(time.Second)
		for _, left := range [][]string{
			{"web/proxy#0", "web/logs#0", "web/app#0"},
			{"web/proxy#0", "web/logs#0"},
			{"web/proxy#0"},
		} {
			w.checkRunning(left...)
			w.sleep(2 * time.Second)
		}
		w.checkNothingLeft()
	})
}

// TestActiveDeadline checks that a static pod of a node without an API server ends at its deadline, although no API
// object has its start time.
func TestActiveDeadline(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(staticPod("web", "0123", func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = ptr(int64(60)) }))
		w.sleep(59 * time.Second)
		w.checkRunning("web/app#0")
		w.sleep(2 * time.Second)
		w.checkRunning()
		if n := len(w.eventsWith("DeadlineExceeded Pod was active on the node longer than the specified deadline")); n != 1 {
			t.Errorf("got %d events about the deadline, want 1", n)
		}
	})
}
