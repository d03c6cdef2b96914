package agent_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// What a pod may cost the runtime, in calls, none of them a list. A pod has one container; the image is there. Each of
// the three calls of an end has an event: the pod is read after both, once if they come at the same time.
const (
	maxStartCalls = 7
	maxStopCalls  = 3 * 3
)

// TestStartAndEndInTheLog checks that the log says once of each pod that it has started and that it has ended: not of a
// pod without a container that ran that it has started, and not after a restart of the agent that it has ended again.
func TestStartAndEndInTheLog(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("once", fake.Script{RunsFor: time.Second, ExitCode: 1})
		stuck := apiPod("stuck", withConfigMap("settings"))
		w.run(stuck, apiPod("failed", func(pod *corev1.Pod) {
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
			pod.Spec.Containers[0].Name = "once"
		}))
		w.sleep(time.Minute)
		w.delete(stuck, time.Second)
		w.sleep(time.Minute)
		w.restart()
		w.sleep(time.Minute)
		got := regexp.MustCompile(`pod (started|ended)\npodUID=\S+`).FindAllString(w.everythingLogged(), -1)
		want := []string{
			"pod started\npodUID=uid-failed", "pod ended\npodUID=uid-failed", "pod ended\npodUID=uid-stuck",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestPodRuns checks that a pod is started with one call of each kind, in order, and its status says so; deleted, it
// goes without a trace.
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
		app := containerStatus(st, "app")
		if st.Phase != corev1.PodRunning || !ready(st) || st.PodIP == "" || app.State.Running == nil ||
			app.RestartCount != 0 {
			t.Errorf("status: got %+v, want a ready pod with an address and no restart", st)
		}
		id := w.runtime.Containers()[0].Id
		if to, err := os.Readlink(w.path("links/web_default_app-" + id +
			".log")); to != w.path("logs/default_web_uid-web/app/0.log") {
			t.Errorf("link for log collectors: got %q, %v, want the log of app", to, err)
		}
		w.checkCost("a start", maxStartCalls)

		// What the API server says of the pod after that is no news, and costs no call.
		w.runtime.ResetCalls()
		echo := *pod
		echo.Status = st
		w.run(&echo)
		w.sleep(time.Second)
		if n := len(w.runtime.Calls()); n != 0 {
			t.Errorf("the echo of the status caused %d calls, want none: %v", n, w.runtime.Verbs())
		}

		w.delete(pod, 0)
		w.sleep(0)
		w.checkNothingLeft()
		want = []string{"StopContainer", "StopPodSandbox", "RemovePodSandbox"}
		if got := w.acts(); !slices.Equal(got, want) {
			t.Errorf("end made %q, want %q", got, want)
		}
		w.checkCost("an end", maxStopCalls)
	})
}

// checkCost checks that the calls to the runtime are few, and no list is among them.
func (w *world) checkCost(of string, most int) {
	w.t.Helper()
	verbs := w.runtime.Verbs()
	w.t.Logf("calls of %s: %d, %v", of, len(w.runtime.Calls()), verbs)
	if n := len(w.runtime.Calls()); n > most {
		w.t.Errorf("%s took %d calls, want at most %d: %v", of, n, most, verbs)
	}
	if n := verbs["ListPodSandbox"] + verbs["ListContainers"]; n > 0 {
		w.t.Errorf("%s took %d lists, want none", of, n)
	}
}

// TestHostNetwork checks that a pod on the node's network has the node's addresses and its hosts file.
func TestHostNetwork(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web", func(pod *corev1.Pod) { pod.Spec.HostNetwork = true })
		w.run(pod)
		w.sleep(0)
		w.checkRunning("web/app#0")
		if st := w.status(pod); st.PodIP != "192.0.2.1" || st.HostIP != "192.0.2.1" || !ready(st) {
			t.Errorf("status: got %+v, want a ready pod with the address of the host", st)
		}
		hosts, err := os.ReadFile(w.path("pods/uid-web/etc-hosts"))
		if text, _ := os.ReadFile("/etc/hosts"); !strings.Contains(string(hosts), string(text)) {
			t.Errorf("hosts file: got %q, %v, want the text of /etc/hosts in it", hosts, err)
		}
	})
}

// TestNetworkChanges checks that a pod gets another sandbox when it is to be on the node's network, or not any more, as
// the manifest of a static pod with a UID can say.
func TestNetworkChanges(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		onHost := apiPod("web", func(pod *corev1.Pod) { pod.Spec.HostNetwork = true })
		for i, pod := range []*corev1.Pod{apiPod("web"), onHost, apiPod("web")} {
			w.run(pod)
			w.sleep(time.Minute)
			w.checkRunning(fmt.Sprintf("web/app#%d", i))
			if st := w.status(pod); !ready(st) || (st.PodIP == "192.0.2.1") != pod.Spec.HostNetwork {
				t.Errorf("host network %t: got address %q, ready %t, want one of the right network and ready",
					pod.Spec.HostNetwork, st.PodIP, ready(st))
			}
		}
	})
}

// TestNodeMoves checks that the status of a pod at rest follows the addresses of its node, also one that has changed
// while no agent ran.
func TestNodeMoves(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web")
		onHost := apiPod("proxy", func(pod *corev1.Pod) { pod.Spec.HostNetwork = true })
		w.run(pod, onHost)
		w.sleep(time.Minute)
		check := func(want string) {
			t.Helper()
			if got := w.status(pod); got.HostIP != want || len(got.HostIPs) != 1 || got.HostIPs[0].IP != want {
				t.Errorf("got host IP %s, %v, want %s", got.HostIP, got.HostIPs, want)
			}
			if got := w.status(onHost); got.PodIP != want || len(got.PodIPs) != 1 || got.PodIPs[0].IP != want {
				t.Errorf("on the host network: got pod IP %s, %v, want %s", got.PodIP, got.PodIPs, want)
			}
		}
		w.hostIPs.Store(&[]string{"192.0.2.2"})
		w.agent.NodeMoved()
		w.sleep(time.Second)
		check("192.0.2.2")
		w.hostIPs.Store(&[]string{"192.0.2.3"})
		w.restart()
		w.sleep(time.Second)
		check("192.0.2.3")
	})
}

// TestProbedAddress checks that a pod in the host network is probed at the address of its node, and at that in its
// status while a restarted agent does not know the node's.
func TestProbedAddress(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		check := func(when, want string) {
			t.Helper()
			if got := *w.probedAt.Load(); got != want {
				t.Errorf("%s: got probes at %q, want %q", when, got, want)
			}
		}
		w.hostIPs.Store(&[]string{})
		pod := apiPod("web", func(pod *corev1.Pod) {
			pod.Spec.HostNetwork = true
			pod.Spec.Containers[0].ReadinessProbe = execProbe("ready")
		})
		w.run(pod)
		w.sleep(time.Minute)
		w.hostIPs.Store(&[]string{"192.0.2.2"})
		w.agent.NodeMoved()
		w.sleep(time.Second)
		check("when the address of the node is known", "192.0.2.2")
		w.hostIPs.Store(&[]string{})
		w.restart()
		w.sleep(time.Second)
		check("after a restart", "192.0.2.2")
		w.hostIPs.Store(&[]string{"192.0.2.3"})
		w.agent.NodeMoved()
		w.sleep(time.Second)
		check("after the node got another address", "192.0.2.3")
	})
}

// TestEphemeralContainer checks that a container for debugging is started in a running pod, and not again once it has
// ended.
func TestEphemeralContainer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("debug", fake.Script{RunsFor: time.Minute})
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Second)
		next := pod.DeepCopy()
		next.Generation = 2
		debug := corev1.EphemeralContainerCommon(container("debug"))
		next.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
			EphemeralContainerCommon: debug,
			TargetContainerName:      "app",
		}}
		w.run(next)
		w.sleep(time.Second)
		w.checkRunning("web/app#0", "web/debug#0")
		w.sleep(anHour)
		w.checkRunning("web/app#0")
		if st := w.status(next).EphemeralContainerStatuses; len(st) != 1 || st[0].State.Terminated == nil {
			t.Errorf("status: got %+v, want one terminated ephemeral container", st)
		}
	})
}

// TestEphemeralImageBackOff checks that a back-off of the image of a container for debugging has an event.
func TestEphemeralImageBackOff(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("web", func(pod *corev1.Pod) {
			debug := corev1.EphemeralContainerCommon(container("debug"))
			debug.Image = "missing:1"
			pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: debug}}
		}))
		w.sleep(15 * time.Second)
		for _, event := range []string{`BackOff Back-off pulling image "missing:1"`, "Failed Error: ImagePullBackOff"} {
			if got := w.eventsWith(event); len(got) != 1 {
				t.Errorf("events: got %q, want one with %q", w.eventsWith(""), event)
			}
		}
	})
}

// TestDeletedPodComesBack checks that a pod that the API server still has after its final delete is deleted again: etcd
// may have been restored from a backup.
func TestDeletedPodComesBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.lostDeletes = 1
		w.run(deleted(apiPod("web"), 30*time.Second))
		w.sleep(time.Second)
		if n, lost := w.left(); lost != 0 || n != 1 {
			t.Fatalf("pods after the lost delete: got %d, want 1", n)
		}
		w.sleep(2 * time.Minute)
		w.checkNothingLeft()
		if n, _ := w.left(); n != 0 {
			t.Errorf("pods two minutes later: got %d, want none", n)
		}
	})
}

// TestDeletedBeforeTheStart checks that a pod that is to be deleted when the agent first hears of it is never made,
// and reported as gone.
func TestDeletedBeforeTheStart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(deleted(apiPod("web"), 30*time.Second))
		w.sleep(time.Second)
		w.checkNothingLeft()
		acts := w.acts()
		if n, _ := w.left(); len(acts) != 0 || n != 0 {
			t.Errorf("got the calls %q and %d pods left, want none", acts, n)
		}
	})
}

// TestNotifiedBeforeTheStart checks that nobody who notifies pods waits for a supervisor that has not begun, and may
// never do so: device plugins and drivers report while the agent waits for the container runtime.
func TestNotifiedBeforeTheStart(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		supervisor := agent.NewSupervisor(agent.Config{})
		many := make([]types.UID, 1000)
		supervisor.HealthChanged(many)
		supervisor.ObjectsChanged(many)
	})
}
