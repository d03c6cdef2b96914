package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// starts returns the times at which containers were started, relative to the first.
func (w *world) starts() []time.Duration { return w.calledAt("StartContainer") }

// calledAt returns the times of calls to the runtime, relative to the first.
func (w *world) calledAt(verb string) []time.Duration {
	var all []time.Duration
	var first time.Time
	for _, c := range w.runtime.Calls() {
		if c.Verb == verb {
			if first.IsZero() {
				first = c.At
			}
			all = append(all, c.At.Sub(first))
		}
	}
	return all
}

// TestUnusableSandboxes checks that sandboxes that are of no use from the beginning are created after 1 s, 2 s, and so
// on, up to 60 s, and do not stay. One that has been usable is replaced at once.
func TestUnusableSandboxes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.NoAddresses = true
		pod := apiPod("web")
		w.run(pod)
		w.sleep(5 * time.Minute)
		w.checkWaits(pod, "create sandbox attempt 10", "pod sandbox has no IP address")
		if all := w.runtime.Sandboxes(); len(all) != 1 {
			t.Errorf("after 5 minutes: got %d sandboxes, want 1", len(all))
		}
		w.runtime.NoAddresses = false
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
		w.runtime.KillSandbox(w.runtime.Sandboxes()[0].Id)
		w.sleep(time.Minute)
		w.checkRunning("web/app#1")
		var want []time.Duration
		at := time.Duration(0)
		for _, seconds := range []int{0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60} {
			at += time.Duration(seconds) * time.Second
			want = append(want, at)
		}
		got := w.calledAt("RunPodSandbox")
		if len(got) != len(want)+1 || !slices.Equal(got[:len(want)], want) {
			t.Errorf("sandboxes at %v, want them at %v, and another when the last was lost", got, want)
		}
	})
}

// TestCrashLoop checks that a container that ends after a second is restarted at once, then after 10 s, 20 s and so on,
// up to 300 s.
func TestCrashLoop(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{RunsFor: time.Second, ExitCode: 1})
		pod := apiPod("web")
		w.run(pod)
		w.sleep(5 * time.Second)
		if c := containerStatus(w.status(pod), "app"); c.State.Waiting == nil ||
			c.State.Waiting.Reason != "CrashLoopBackOff" ||
			c.LastTerminationState.Terminated == nil || c.RestartCount != 1 {
			t.Errorf("after two crashes: got %+v, want CrashLoopBackOff after one restart", c)
		}
		w.checkWaits(pod, "container app", "back-off 10s")
		w.sleep(20 * time.Minute)
		var want []time.Duration
		at := time.Duration(0)
		for _, seconds := range []int{0, 10, 20, 40, 80, 160, 300, 300} {
			want = append(want, at)
			at += time.Second + time.Duration(seconds)*time.Second
		}
		if got := w.starts(); len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Errorf("starts at %v, want %v", got, want)
		}
		events := w.eventsWith("BackOff Back-off restarting failed container")
		if len(events) < 7 || len(events) > len(w.starts()) {
			t.Errorf("got %d back-off events after %d starts: %q", len(events), len(w.starts()), events)
		}
		if n := len(w.runtime.Containers()); n > 2 {
			t.Errorf("got %d instances left, want at most 2", n)
		}
		if links, _ := os.ReadDir(w.path("links")); len(links) != len(w.runtime.Containers()) {
			t.Errorf("there: got %d links to logs, want %d", len(links), len(w.runtime.Containers()))
		}
	})
}

// TestCrashLoopGoesOn checks that the next run of the agent continues the back-off, which it computes from the restart
// count.
func TestCrashLoopGoesOn(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{RunsFor: time.Second, ExitCode: 1})
		w.run(apiPod("web"))
		w.sleep(60 * time.Second)
		before := len(w.starts())
		w.restart()
		w.sleep(10 * time.Second)
		if n := len(w.starts()); n != before {
			t.Errorf("10 s after a restart of the agent: got %d starts, want %d as before", n, before)
		}
		w.sleep(5 * time.Minute)
		if n := len(w.starts()); n == before {
			t.Errorf("5 min after a restart of the agent: got %d starts, want more", n)
		}
	})
}

// TestPullBackOff checks that a failed image pull is tried again after 10 s, 20 s and so on, that the status has
// the reason, and that each failure has events.
func TestPullBackOff(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web", func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "missing:1" })
		w.run(pod)
		w.sleep(time.Second)
		c := containerStatus(w.status(pod), "app")
		if c.State.Waiting == nil || !strings.Contains(c.State.Waiting.Reason+c.State.Waiting.Message, "Pull") {
			t.Errorf("state: got %+v, want a wait for the pull", c.State)
		}
		w.sleep(80 * time.Second)
		if n := w.runtime.Verbs()["PullImage"]; n != 4 { // after 0, 10, 30 and 70 s
			t.Errorf("got %d pulls, want 4", n)
		}
		for _, event := range []string{`BackOff Back-off pulling image "missing:1"`, "Failed Error: ImagePullBackOff"} {
			if got := w.eventsWith(event); len(got) != 3 { // the first failure is shown as ErrImagePull
				t.Errorf("events: got %q, want three with %q", w.eventsWith(""), event)
			}
		}
		w.runtime.Publish(fake.RemoteImage{Name: "missing:1"})
		w.sleep(80 * time.Second)
		w.checkRunning("web/app#0")
	})
}

// TestPullBackOffEndsWithNewImage checks that a pod that waits to pull again does not wait when it gets another image.
func TestPullBackOffEndsWithNewImage(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web", func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "missing:1" })
		w.run(pod)
		w.sleep(10 * time.Minute)
		w.checkRunning()
		next := pod.DeepCopy()
		next.Generation, next.Spec.Containers[0].Image = 2, "busybox:1"
		w.run(next)
		w.sleep(0)
		w.checkRunning("web/app#0")
	})
}

// TestMissingSecretWakesContainer checks that a container whose environment lacks a Secret starts as soon as
// the Secret exists.
func TestMissingSecretWakesContainer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("web", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "login"},
			}}}
		}))
		w.sleep(10 * time.Minute)
		w.checkRunning()
		w.change(func(set *pods.Set) {
			set.Secrets = map[types.NamespacedName]*corev1.Secret{
				{Namespace: "default", Name: "login"}: {Data: map[string][]byte{"key": []byte("value")}},
			}
		})
		w.sleep(0)
		w.checkRunning("web/app#0")
	})
}

// TestPullPolicies checks that an image that is present is pulled with the policy Always, and one that is not unless
// the policy is Never.
func TestPullPolicies(t *testing.T) {
	for _, c := range []struct {
		policy  corev1.PullPolicy
		present bool
		pulls   int
		runs    bool
	}{
		{corev1.PullIfNotPresent, true, 0, true}, {corev1.PullIfNotPresent, false, 1, true},
		{corev1.PullAlways, true, 1, true}, {corev1.PullAlways, false, 1, true},
		{corev1.PullNever, true, 0, true}, {corev1.PullNever, false, 0, false},
	} {
		t.Run(fmt.Sprintf("%s/present=%v", c.policy, c.present), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Publish(fake.RemoteImage{Name: "tool:1"})
				if c.present {
					w.runtime.AddImage(fake.RemoteImage{Name: "tool:1"})
				}
				pod := apiPod("web", func(pod *corev1.Pod) {
					pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = "tool:1", c.policy
				})
				w.run(pod)
				w.sleep(time.Minute)
				if pulls, n := w.runtime.Verbs()["PullImage"], len(w.running()); pulls != c.pulls || (n == 1) != c.runs {
					t.Errorf("got %d pulls, %d running containers, want %d", pulls, n, c.pulls)
				}
				if wait := containerStatus(w.status(pod), "app").State.Waiting; !c.runs &&
					(wait == nil || wait.Reason != "ErrImageNeverPull") {
					t.Errorf("the container waits for %+v, want ErrImageNeverPull", wait)
				}
			})
		})
	}
}

// withLogin gives the container of a pod an image, and the pod the pull secret login.
func withLogin(image string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Image = image
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "login"}}
	}
}

// TestMissingPullSecret checks that a pull secret that does not exist is an event only if the image cannot be pulled.
func TestMissingPullSecret(t *testing.T) {
	for image, events := range map[string]int{"public:1": 0, "private:1": 2} {
		t.Run(image, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Publish(fake.RemoteImage{Name: "public:1"})
				w.run(apiPod("web", withLogin(image)))
				w.sleep(15 * time.Second)
				if got := w.eventsWith("FailedToRetrieveImagePullSecret"); len(got) != events {
					t.Errorf("got events %q, want %d", got, events)
				}
			})
		})
	}
}

// TestPullSecretComes checks that an image whose pull has failed without a pull secret is pulled soon when the
// secret is there, and that another change of what the pod uses does not end the back-off afterwards.
func TestPullSecretComes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const image = "registry.example/private:1"
		w.runtime.Publish(fake.RemoteImage{Name: image, Logins: map[string]string{"me": "right"}})
		pod := staticPod("a", "uid-a", withLogin(image))
		w.run(pod)
		w.sleep(5 * time.Minute) // the next attempt is some minutes away
		pulls := w.runtime.Verbs()["PullImage"]
		login := func(password string) {
			w.change(func(set *pods.Set) {
				set.Secrets = map[types.NamespacedName]*corev1.Secret{{Namespace: "default", Name: "login"}: secret("login",
					corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey,
					`{"auths":{"registry.example":{"username":"me","password":"`+password+`"}}}`)}
			})
			w.sleep(time.Second)
			w.agent.ObjectsChanged([]types.UID{pod.UID})
			w.sleep(time.Second)
		}
		login("wrong")
		if got := w.runtime.Verbs()["PullImage"]; got != pulls+1 {
			t.Errorf("with a secret that is wrong: got %d pulls after %d, want one more", got, pulls)
		}
		w.change(func(set *pods.Set) { set.Secrets = nil })
		w.sleep(9 * time.Minute)
		login("right")
		if n := len(w.running()); n != 1 {
			t.Errorf("with the secret: got %d running containers, want 1", n)
		}
	})
}

// TestPullWithoutSecretWaits checks that changes of other objects of a pod whose pull secret does not exist do not pull
// its image again and again.
func TestPullWithoutSecretWaits(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web", withLogin("private:1"))
		w.run(pod)
		w.sleep(5 * time.Minute) // the next attempt is some minutes away
		pulls := w.runtime.Verbs()["PullImage"]
		for range 18 {
			w.agent.ObjectsChanged([]types.UID{pod.UID})
			w.sleep(time.Second / 2)
			if wait := containerStatus(w.status(pod), "app").State.Waiting; wait == nil || wait.Reason == "ContainerCreating" {
				t.Errorf("the container waits for %+v, want that for its image", wait)
			}
		}
		if got := w.runtime.Verbs()["PullImage"] - pulls; got != 1 {
			t.Errorf("got %d pulls after 18 changes within 9 seconds, want 1", got)
		}
	})
}

// commandsEnd sets the outcome of all later commands in containers.
func (w *world) commandsEnd(o fake.ExecOutcome) {
	w.runtime.OnExec(func(string, []string) fake.ExecOutcome { return o })
}

// TestStartFails checks that a container that cannot be started is created again, with back-off, and that its status
// has the error.
func TestStartFails(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{StartErr: "exec: no such file"})
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Minute)
		c := containerStatus(w.status(pod), "app")
		if end := c.LastTerminationState.Terminated; end == nil || end.Message != "exec: no such file" ||
			end.Reason != "StartError" {
			t.Errorf("got %+v, want StartError with the runtime's message", c)
		}
		if len(w.eventsWith("Failed Error: exec: no such file")) == 0 {
			t.Error("got no event with the runtime's error")
		}
		if n := w.runtime.Verbs()["StartContainer"]; n < 2 || n > 5 {
			t.Errorf("got %d starts in a minute, want 2 to 5", n)
		}
		w.runtime.Script("app", fake.Script{})
		w.sleep(5 * time.Minute)
		if n := len(w.running()); n != 1 {
			t.Errorf("got %d running containers, want 1", n)
		}
	})
}

// TestResetsBackOff checks that a container which fails at once and restarts all containers of its pod waits for the
// usual back-off, and that one which runs for longer than that does not.
func TestResetsBackOff(t *testing.T) {
	for runsFor, want := range map[time.Duration]int{10 * time.Millisecond: 9, 310 * time.Second: 4} {
		t.Run(runsFor.String(), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Script("checker", fake.Script{RunsFor: runsFor, ExitCode: 42})
				w.run(apiPod("web", withJudge, withRestart(corev1.RestartPolicyNever)))
				w.sleep(940 * time.Second)
				if n := w.runtime.Verbs()["CreateContainer"]; n != 2*want {
					t.Errorf("got %d creations of two containers, want %d", n, 2*want)
				}
			})
		})
	}
}

// TestLivenessRestarts checks that a container whose liveness probe fails three times is stopped and restarted, with
// events.
func TestLivenessRestarts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		sick := time.Now().Add(30 * time.Second)
		w.runtime.OnExec(func(string, []string) fake.ExecOutcome {
			if time.Now().After(sick) && time.Now().Before(sick.Add(10*time.Second)) {
				return fake.ExecOutcome{ExitCode: 1, Stdout: "feeling bad"}
			}
			return fake.ExecOutcome{}
		})
		pod := apiPod("web", func(pod *corev1.Pod) { pod.Spec.Containers[0].LivenessProbe = execProbe("healthy") })
		w.run(pod)
		w.sleep(30 * time.Second)
		w.checkRunning("web/app#0")
		w.sleep(30 * time.Second)
		w.checkRunning("web/app#3") // restarted at once, again while it still fails, and then after the back-off
		for _, text := range []string{"Unhealthy Liveness probe failed: feeling bad",
			"Killing Container app failed liveness probe"} {
			if len(w.eventsWith(text)) == 0 {
				t.Errorf("got no event with %q", text)
			}
		}
		if c := containerStatus(w.status(pod), "app"); c.LastTerminationState.Terminated == nil {
			t.Errorf("status: got %+v, want a last termination", c)
		}
	})
}

// TestSilentRuntimeRestartsNothing checks that a runtime that answers no call for a while says nothing about the
// containers: no probe fails.
func TestSilentRuntimeRestartsNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web", func(pod *corev1.Pod) {
			app := &pod.Spec.Containers[0]
			app.LivenessProbe, app.ReadinessProbe = execProbe("healthy"), execProbe("ready")
			app.LivenessProbe.FailureThreshold, app.ReadinessProbe.FailureThreshold = 1, 1
		})
		w.run(pod)
		w.sleep(time.Minute)
		silence := w.runtime.Inject(&fake.Fault{Hang: true})
		w.sleep(10 * time.Minute)
		if !ready(w.status(pod)) {
			t.Error("the pod is not ready while the runtime does not answer")
		}
		w.runtime.Release(silence)
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
	})
}

// TestReadiness checks that the Ready condition follows the readiness probe without a restart of the container, and
// that the next run of the agent keeps the result until the probe has another one.
func TestReadiness(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web", func(pod *corev1.Pod) { pod.Spec.Containers[0].ReadinessProbe = execProbe("ready") })
		w.run(pod)
		for i, want := range []bool{false, true, false, true} {
			w.commandsEnd(fake.ExecOutcome{ExitCode: map[bool]int32{false: 1, true: 0}[want]})
			w.sleep(10 * time.Second)
			if got := ready(w.status(pod)); got != want {
				t.Errorf("round %d: ready: got %v, want %v", i, got, want)
			}
		}
		w.checkRunning("web/app#0")
		w.restart()
		if !ready(w.status(pod)) {
			t.Error("after the restart of the agent: got the pod not ready for a moment, want it ready all the time")
		}
	})
}

// TestStartupGate checks that other probes, and the containers after a sidecar, wait for the startup probe.
func TestStartupGate(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := time.Now().Add(20 * time.Second)
		w.runtime.OnExec(func(string, []string) fake.ExecOutcome {
			if time.Now().Before(up) {
				return fake.ExecOutcome{ExitCode: 1}
			}
			return fake.ExecOutcome{}
		})
		pod := apiPod("web", withSidecar("proxy"), func(pod *corev1.Pod) {
			c := &pod.Spec.InitContainers[0]
			c.StartupProbe, c.LivenessProbe = execProbe("up"), execProbe("healthy")
			c.StartupProbe.FailureThreshold = 30
		})
		w.run(pod)
		w.sleep(19 * time.Second)
		w.checkRunning("web/proxy#0")
		w.sleep(3 * time.Second)
		w.checkRunning("web/proxy#0", "web/app#0")
	})
}

// TestPostStart checks that a container is running when its hook has completed, and is stopped and restarted when the
// hook fails.
func TestPostStart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commandsEnd(fake.ExecOutcome{Takes: 5 * time.Second, ExitCode: 1})
		pod := apiPod("web", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: command("warm")}}
		})
		w.run(pod)
		w.sleep(4 * time.Second)
		w.checkRunning("web/app#0")
		if ready(w.status(pod)) {
			t.Error("before the hook has completed: got the pod ready, want it not ready")
		}
		w.sleep(2 * time.Second)
		if len(w.eventsWith("FailedPostStartHook")) == 0 {
			t.Error("got no event about the failed hook")
		}
		w.checkRunning("web/app#1")
		w.commandsEnd(fake.ExecOutcome{Takes: 5 * time.Second})
		w.sleep(5 * time.Minute)
		if !ready(w.status(pod)) {
			t.Errorf("after the hook: got %+v, want a ready pod", w.status(pod))
		}
	})
}

// TestRuntimeRestartsInPostStart checks that a restart of the runtime during a postStart hook does not end the
// container, and that its hook does not run twice. One that was due while the runtime was away runs then, and the
// containers after it wait.
func TestRuntimeRestartsInPostStart(t *testing.T) {
	for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure} {
		for name, tt := range map[string]struct {
			// away begins the time at which the runtime is away; the hook has succeeded not before least.
			away  func(w *world)
			least time.Duration
			// asked is how often the runtime is asked to run the hook.
			asked int
		}{
			"cut off": {func(w *world) {
				time.AfterFunc(5*time.Second, func() { w.runtime.Crash(false) })
				time.AfterFunc(8*time.Second, func() {
					if err := w.runtime.Restart(); err != nil {
						w.t.Error(err)
					}
				})
			}, 5 * time.Second, 1},
			"not asked": {func(w *world) {
				w.runtime.Inject(&fake.Fault{Verb: "ExecSync", Times: 4, Err: status.Error(codes.Unavailable, "no server")})
			}, 30 * time.Second, 5},
		} {
			t.Run(fmt.Sprint(name, policy), func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					w.commandsEnd(fake.ExecOutcome{Takes: 20 * time.Second})
					tt.away(w)
					pod := apiPod("job", withRestart(policy), func(pod *corev1.Pod) {
						pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
							PostStart: &corev1.LifecycleHandler{Exec: command("warm")}}
						pod.Spec.Containers = append(pod.Spec.Containers, container("next"))
					})
					w.run(pod)
					w.sleep(tt.least - time.Millisecond)
					w.checkRunning("job/app#0")
					w.sleep(time.Minute)
					w.checkRunning("job/app#0", "job/next#0")
					if !ready(w.status(pod)) {
						t.Errorf("got %+v, want a ready pod", w.status(pod))
					}
					if n := w.runtime.Verbs()["ExecSync"]; n != tt.asked {
						t.Errorf("the runtime was asked to run the postStart hook %d times, want %d", n, tt.asked)
					}
					if len(w.eventsWith("FailedPostStartHook")) == 0 {
						t.Error("got no event about the hook")
					}
				})
			})
		}
	}
}

// TestJob checks that a pod whose containers have ended is Succeeded or Failed, keeps its container for its log, and is
// not started again by the next run of the agent.
func TestJob(t *testing.T) {
	for code, phase := range map[int32]corev1.PodPhase{0: corev1.PodSucceeded, 3: corev1.PodFailed} {
		t.Run(string(phase), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Script("app", fake.Script{RunsFor: time.Second, ExitCode: code})
				pod := apiPod("job", withRestart(corev1.RestartPolicyNever), withEmptyDir)
				w.run(pod)
				w.sleep(time.Minute)
				w.restart()
				w.sleep(anHour)
				st := w.status(pod)
				if end := containerStatus(st, "app").State.Terminated; st.Phase != phase || end == nil || end.ExitCode != code {
					t.Errorf("status: got %+v, want %s and exit code %d", st, phase, code)
				}
				if n := w.runtime.Verbs()["StartContainer"]; n != 1 {
					t.Errorf("got %d starts, want 1", n)
				}
				for _, s := range w.runtime.Sandboxes() {
					if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
						t.Error("the network of the sandbox: got it still there, want it released")
					}
				}
				w.delete(pod, 30*time.Second)
				w.sleep(time.Second)
				w.checkNothingLeft()
			})
		})
	}
}

// TestTerminationMessage checks that the status has the message from a container's file, or else from its log.
func TestTerminationMessage(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("job", withRestart(corev1.RestartPolicyNever), func(pod *corev1.Pod) {
			talker := container("talker")
			talker.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
			pod.Spec.Containers = append(pod.Spec.Containers, talker)
		})
		w.run(pod)
		w.sleep(time.Second)
		for _, c := range w.runtime.Containers() {
			file := c.LogPath
			text := "2000-01-01T00:00:00.5Z stderr F out of luck\n"
			if c.Metadata.Name == "app" {
				text = "all is lost"
				i := slices.IndexFunc(c.Mounts, func(m *runtimeapi.Mount) bool { return m.ContainerPath == "/dev/termination-log" })
				file = c.Mounts[i].HostPath
			}
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			w.runtime.ExitContainer(c.Id, 1, "")
		}
		w.sleep(time.Second)
		for name, want := range map[string]string{"app": "all is lost", "talker": "out of luck\n"} {
			if end := containerStatus(w.status(pod), name).State.Terminated; end == nil || end.Message != want {
				t.Errorf("%s: got %+v, want message %q", name, end, want)
			}
		}
	})
}

// TestEndsAreCounted checks that each end of a container that crashes again and again is counted once, also in a
// back-off.
func TestEndsAreCounted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{RunsFor: time.Second, ExitCode: 3})
		pod := apiPod("web")
		w.run(pod)
		w.sleep(2*time.Minute + 500*time.Millisecond)
		want := int64(w.status(pod).ContainerStatuses[0].RestartCount + 1)
		if got := w.ends.Load(); got != want || got < 4 {
			t.Errorf("got %d ends, want %d and at least 4", got, want)
		}
		w.delete(pod, time.Second)
		w.sleep(time.Minute)
		if got := w.ends.Load(); got != want {
			t.Errorf("after the end of the pod: got %d ends, want still %d", got, want)
		}
	})
}

// TestRestartsAreNotCounted checks that the ends by which a failed probe restarts a container do not count.
func TestRestartsAreNotCounted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commandsEnd(fake.ExecOutcome{ExitCode: 1})
		w.run(apiPod("web", func(pod *corev1.Pod) { pod.Spec.Containers[0].LivenessProbe = execProbe("healthy") }))
		w.sleep(5 * time.Minute)
		if got := w.ends.Load(); got != 0 {
			t.Errorf("a failed probe: got %d ends, want none", got)
		}
	})
}
