package agent_test

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// explained returns what `nodelet explain` prints now.
func (w *world) explained() string {
	w.t.Helper()
	all, err := w.agent.Explain(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	var out strings.Builder
	agent.WriteExplanations(&out, all, time.Now())
	return regexp.MustCompile("c0de[0-9a-f]+").ReplaceAllString(out.String(), "ID")
}

// checkExplained checks that what `nodelet explain` prints now begins with a text.
func (w *world) checkExplained(want string) {
	w.t.Helper()
	if got := w.explained(); !strings.HasPrefix(got, want) {
		w.t.Errorf("got:\n%s\nwant it to begin with:\n%s", got, want)
	}
}

// stubborn makes the containers of a pod ignore SIGTERM, and the pod end within a minute.
func (w *world) stubborn(pod *corev1.Pod) *corev1.Pod {
	w.runtime.Script("app", fake.Script{IgnoresTerm: true})
	pod.Spec.TerminationGracePeriodSeconds = ptr(int64(60))
	return pod
}

// TestExplainEvictedPod checks that the reason of an eviction is shown while the pod ends, and its result after that:
// the same as after a restart of the agent.
func TestExplainEvictedPod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := w.stubborn(apiPod("web"))
		w.run(pod)
		w.sleep(20 * time.Second)
		const message = "The node was low on resource: memory."
		w.agent.Evict(t.Context(), pod.UID, agent.Eviction{Reason: "Evicted", Message: message, Grace: time.Minute})
		w.sleep(time.Second)
		w.checkExplained("default/web  stopping, Evicted: " + message + "\n    waits for: stop container app (ID)")
		w.sleep(2 * time.Minute)
		w.checkExplained("default/web  Failed, Evicted: " + message + "\n")
		w.restart()
		w.sleep(20 * time.Second)
		w.checkExplained("default/web  Failed, Evicted: " + message + "\n")
	})
}

// TestExplainEvictedThenDeleted checks that the text names both why a pod is deleted and why it was evicted before.
func TestExplainEvictedThenDeleted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := w.stubborn(apiPod("web"))
		w.run(pod)
		w.sleep(20 * time.Second)
		w.agent.Evict(t.Context(), pod.UID, agent.Eviction{Reason: "Evicted", Message: "disk", Grace: time.Minute})
		w.delete(pod, time.Minute)
		w.sleep(time.Second)
		w.checkExplained("default/web  stopping, deleted, Evicted: disk\n")
	})
}

// TestExplainDeadline checks that a pod that ends at its deadline is not shown as a healthy one, and that the event is
// recorded then, not only after the end.
func TestExplainDeadline(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(w.stubborn(apiPod("job", func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = ptr(int64(5)) })))
		w.sleep(10 * time.Second)
		const message = "Pod was active on the node longer than the specified deadline"
		w.checkExplained("default/job  stopping, DeadlineExceeded: " + message + "\n    waits for: stop container app (ID)")
		for _, after := range []time.Duration{0, 2 * time.Minute} {
			w.sleep(after)
			if n := len(w.eventsWith("DeadlineExceeded " + message)); n != 1 {
				t.Errorf("%v later: got %d events about the deadline, want 1", after, n)
			}
		}
		w.checkExplained("default/job  Failed, DeadlineExceeded: " + message + "\n")
	})
}

// TestExplainCompleted checks what is shown of a pod whose sidecar still ends.
func TestExplainCompleted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{RunsFor: 5 * time.Second})
		w.runtime.Script("mesh", fake.Script{IgnoresTerm: true})
		w.run(apiPod("job", withSidecar("mesh"), withRestart(corev1.RestartPolicyNever)))
		w.sleep(20 * time.Second)
		w.checkExplained("default/job  stopping, completed\n    waits for: stop container mesh (ID)")
		w.sleep(time.Minute)
		w.checkExplained("default/job  Succeeded\n")
	})
}

// TestExplainSidecar checks that the result of a startup probe is shown also during the initialization of a pod.
func TestExplainSidecar(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commandsEnd(fake.ExecOutcome{ExitCode: 1, Stdout: "no database"})
		w.run(apiPod("web", withSidecar("mesh"), func(pod *corev1.Pod) {
			p := execProbe("healthy")
			p.FailureThreshold = 1000
			pod.Spec.InitContainers[0].StartupProbe = p
		}))
		w.sleep(20 * time.Second)
		w.checkExplained(`default/web  Pending
    waits for: container mesh: runs; the containers after it wait until it has started
    waits for: container mesh: Startup probe failed: no database
`)
	})
}

// TestExplainRepeated checks that the error of the last attempt is shown also while the step is tried again.
func TestExplainRepeated(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Inject(&fake.Fault{Verb: "RunPodSandbox", Times: 1, Err: errors.New("no address left")})
		w.run(apiPod("web"))
		w.sleep(500 * time.Millisecond)
		w.runtime.Inject(&fake.Fault{Verb: "RunPodSandbox", Hang: true})
		w.sleep(10 * time.Second)
		w.checkExplained("default/web  Pending\n" +
			"    waits for: create sandbox attempt 0: in progress; the last attempt failed: rpc error: code = Unknown " +
			"desc = no address left (running for 10s)\n")
	})
}

// TestExplainProbeCannotRun checks that the error of a probe that cannot be run is shown, also in the place of an older
// result.
func TestExplainProbeCannotRun(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commandsEnd(fake.ExecOutcome{ExitCode: 1, Stdout: "no database"})
		w.run(apiPod("web", func(pod *corev1.Pod) {
			c := &pod.Spec.Containers[0]
			c.LivenessProbe, c.ReadinessProbe = nil, execProbe("healthy")
		}))
		w.sleep(20 * time.Second)
		w.checkExplained("default/web  Running\n    waits for: container app: Readiness probe failed: no database\n")
		fault := w.runtime.Inject(&fake.Fault{Verb: "ExecSync", Err: errors.New("executable file not found")})
		w.sleep(20 * time.Second)
		w.checkExplained("default/web  Running\n    waits for: container app: " +
			"Readiness probe errored and resulted in unknown state: " +
			"rpc error: code = Unknown desc = executable file not found\n")
		if waits := w.waits(apiPod("web")); len(waits) != 1 || !waits[0].Probe {
			t.Errorf("got waits %+v, want one that is the result of a probe", waits)
		}
		w.runtime.Release(fault)
	})
}

// TestExplainTraces checks that a pod of which only its UID is known is called by it, also in the log.
func TestExplainTraces(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		err := errors.Join(os.MkdirAll(w.path("pods/0123"), 0o755), os.WriteFile(w.path("pods/0123/volumes"), nil, 0o600))
		if err != nil {
			t.Fatal(err)
		}
		w.sleep(2 * time.Minute)
		w.checkExplained("pod with UID 0123  stopping, orphaned\n    waits for: read the state of the pod")
		if got := w.everythingLogged(); strings.Contains(got, "pod=/\n") || !strings.Contains(got, "cannot observe the pod") {
			t.Errorf("got log\n%s\nwant the pod that cannot be observed by its UID", got)
		}
	})
}

// TestExplainDiskError checks that an error of the disk is not shown as one of the container runtime.
func TestExplainDiskError(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web")
		w.run(pod)
		w.sleep(20 * time.Second)
		volumes := w.path("pods/uid-web/volumes")
		if err := errors.Join(os.RemoveAll(volumes), os.WriteFile(volumes, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		w.delete(pod, 30*time.Second)
		w.sleep(time.Minute)
		w.checkExplained("default/web  stopping, deleted\n    waits for: read the state of the pod: ")
		if got := w.explained(); strings.Contains(got, "container runtime") {
			t.Errorf("got\n%s\nwant nothing about the container runtime", got)
		}
	})
}

// TestExplainKeptPod checks that a pod that was deleted and has ended is shown with what keeps its object.
func TestExplainKeptPod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := deleted(apiPod("web"), time.Second)
		w.run(pod)
		w.lostDeletes = 1000
		w.sleep(20 * time.Second)
		w.checkExplained("default/web  stopping, deleted\n" +
			"    waits for: its removal: the API server still has the pod\n")
		next := *pod
		next.Finalizers = []string{"example.com/a", "example.com/b"}
		w.run(&next)
		w.sleep(20 * time.Second)
		w.checkExplained("default/web  stopping, deleted\n    waits for: its finalizers: example.com/a, example.com/b\n")
	})
}

// TestExplainInitKilled checks that the end of an init container that has failed although its exit code is 0 is shown.
func TestExplainInitKilled(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("setup", fake.Script{RunsFor: time.Second, OOM: true})
		w.run(apiPod("job", withInit("setup"), withRestart(corev1.RestartPolicyNever)))
		w.sleep(20 * time.Second)
		w.checkExplained("default/job  Failed\n    container setup ended at 2000-01-01T00:00:01Z: exit code 0, OOMKilled\n")
	})
}
