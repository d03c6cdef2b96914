package agent_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
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

// TestStopOfOneContainerFails checks that the event about a stop that fails does not say that the pod is being killed,
// if the container only restarts.
func TestStopOfOneContainerFails(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commandsEnd(fake.ExecOutcome{ExitCode: 1})
		w.runtime.Inject(&fake.Fault{Verb: "StopContainer", Err: errors.New("no shim")})
		pod := apiPod("web", func(pod *corev1.Pod) { pod.Spec.Containers[0].LivenessProbe = execProbe("healthy") })
		w.run(pod)
		w.sleep(time.Minute)
		if n := len(w.eventsWith("FailedKillPod")); n != 0 {
			t.Errorf("got %d events FailedKillPod, want none", n)
		}
		if n := len(w.eventsWith("Failed Error: cannot stop the container: ")); n == 0 {
			t.Error("got no event about the container that cannot be stopped")
		}
		w.delete(pod, time.Second)
		w.sleep(time.Minute)
		if n := len(w.eventsWith("FailedKillPod")); n == 0 {
			t.Error("at the end of the pod: got no event FailedKillPod")
		}
	})
}

// TestStopOfOldSandboxFails checks that a pod whose old sandbox cannot be stopped has the event about its new one
// before that, and none that says that the pod is being killed unless it ends.
func TestStopOfOldSandboxFails(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Minute)
		w.runtime.Inject(&fake.Fault{Verb: "StopPodSandbox", Err: errors.New("no network")})
		w.runtime.KillSandbox(w.runtime.Sandboxes()[0].Id)
		w.sleep(time.Minute)
		if n := len(w.eventsWith("FailedKillPod")); n != 0 {
			t.Errorf("got %d events FailedKillPod, want none", n)
		}
		if n := len(w.eventsWith("Failed Error: cannot stop sandbox attempt 0 ")); n == 0 {
			t.Error("got no event about the sandbox that cannot be stopped")
		}
		if n := len(w.eventsWith("SandboxChanged")); n == 0 {
			t.Error("got no event SandboxChanged before the stop of the old sandbox")
		}
		w.delete(pod, time.Second)
		w.sleep(time.Minute)
		if n := len(w.eventsWith("FailedKillPod")); n == 0 {
			t.Error("at the end of the pod: got no event FailedKillPod")
		}
	})
}

// TestRefusalIsLogged checks that the log has why a pod was refused.
func TestRefusalIsLogged(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.refusal.Store(&podstate.Rejection{Reason: "OutOfpods", Message: "no more pods"})
		pod := apiPod("web")
		w.run(pod, staticPod("db", "0123"))
		w.sleep(anHour)
		w.refusal.Store(nil)
		w.run(apiPod("other"))
		w.sleep(time.Second)
		w.agent.RejectVolumes(t.Context(), apiPod("other"), "no more volumes")
		log := w.everythingLogged()
		for _, want := range []string{
			"pod=default/web\npodUID=uid-web\nreason=OutOfpods\nmessage=no more pods\n",
			"pod=default/db\npodUID=0123\nreason=OutOfpods\nmessage=no more pods\n",
			"pod=default/other\npodUID=uid-other\nreason=VolumeAttachmentLimitExceeded\nmessage=no more volumes\n",
		} {
			if n := strings.Count(log, "pod refused\n"+want); n != 1 {
				t.Errorf("got %d records %q, want one", n, want)
			}
		}
	})
}

// TestUnavailableRegistry checks that the event about a pull has what the runtime has said, as with the kubelet, and
// the status the kubelet's text for it.
func TestUnavailableRegistry(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Inject(&fake.Fault{Verb: "PullImage", Err: errors.New("RegistryUnavailable: try later")})
		pod := apiPod("web", func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "fresh:1" })
		w.run(pod)
		w.sleep(time.Second)
		if n := len(w.eventsWith(`Failed to pull image "fresh:1": RegistryUnavailable: try later`)); n != 1 {
			t.Errorf("got %d events with the text of the runtime, want 1", n)
		}
		const want = "image pull failed for fresh:1 because the registry is unavailable: try later"
		if got := w.status(pod).ContainerStatuses[0].State.Waiting; got == nil || got.Message != want {
			t.Errorf("got waiting state %+v, want message %q", got, want)
		}
	})
}
