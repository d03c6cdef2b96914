package agent_test

import (
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// TestStaticPodStaysReady checks that a static pod stays Ready, and that its startup probe does not run again, when the
// next run of the agent gets its mirror pod late.
func TestStaticPodStaysReady(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commandsEnd(fake.ExecOutcome{Takes: 700 * time.Millisecond})
		pod := staticPod("web", "0123", func(pod *corev1.Pod) {
			c := &pod.Spec.Containers[0]
			c.StartupProbe, c.ReadinessProbe = execProbe("up"), execProbe("ready")
			c.StartupProbe.FailureThreshold = 1
		})
		mirror := apiPod("web", func(m *corev1.Pod) { m.Annotations["kubernetes.io/config.mirror"] = "0123" })
		w.runMirrored(pod, mirror)
		w.sleep(time.Minute)
		shown := mirror.DeepCopy()
		shown.Status = w.status(mirror)
		w.end()
		w.runMirrored(pod)
		w.commandsEnd(fake.ExecOutcome{Takes: 700 * time.Millisecond, ExitCode: 1})
		w.begin()
		w.sleep(100 * time.Millisecond)
		w.runMirrored(pod, shown)
		for range 20 {
			w.sleep(100 * time.Millisecond)
			if st := w.status(mirror); !ready(st) || !st.StartTime.Equal(shown.Status.StartTime) {
				t.Fatalf("after the restart of the agent: got status %+v, want it Ready as before", st)
			}
		}
		w.sleep(time.Minute)
		if ready(w.status(mirror)) {
			t.Error("its readiness probe fails: got the pod Ready, want it not ready")
		}
		w.checkRunning("web/app#0")
	})
}

// TestLateMirrorRepeatsNoEvent checks that a back-off that has had an event has no other one when the next run of the
// agent gets the mirror pod late.
func TestLateMirrorRepeatsNoEvent(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{RunsFor: time.Second, ExitCode: 1})
		pod := staticPod("web", "0123")
		mirror := apiPod("web", func(m *corev1.Pod) { m.Annotations["kubernetes.io/config.mirror"] = "0123" })
		w.runMirrored(pod, mirror)
		w.sleep(90 * time.Second) // the next start is after 155 s
		shown := mirror.DeepCopy()
		shown.Status = w.status(mirror)
		w.end()
		w.runMirrored(pod)
		w.begin()
		w.sleep(10 * time.Second)
		before := w.eventsWith("BackOff Back-off restarting failed container")
		w.runMirrored(pod, shown)
		w.sleep(10 * time.Second)
		if got := w.eventsWith("BackOff Back-off restarting failed container"); len(got) != len(before) {
			t.Errorf("got the events %q, want only %q", got, before)
		}
	})
}

// TestLateMirrorKillsNothing checks that a static pod runs on when its mirror pod shows instances that the runtime has
// lost: those that the agent has started since are newer, whatever their number. Such a pod can be the API server.
func TestLateMirrorKillsNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("prepare", fake.Script{RunsFor: time.Second})
		w.runtime.Script("fetch", fake.Script{RunsFor: 2 * time.Minute})
		api, etcd := staticPod("api", "0123"), staticPod("etcd", "4567", withInit("prepare"), withInit("fetch"))
		w.run(api, etcd)
		w.sleep(time.Minute)
		w.checkRunning("api/app#0", "etcd/fetch#0")
		ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}
		runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		lost := func(name string, state corev1.ContainerState) []corev1.ContainerStatus {
			return []corev1.ContainerStatus{{Name: name, ContainerID: "containerd://" + name, RestartCount: 3, State: state}}
		}
		mirrors := map[types.NamespacedName]*corev1.Pod{}
		for _, pod := range []*corev1.Pod{api, etcd} {
			m := apiPod(pod.Name, func(m *corev1.Pod) {
				m.Annotations["kubernetes.io/config.mirror"] = string(pod.UID)
				m.Status.Phase, m.Status.StartTime = corev1.PodRunning, ptr(metav1.NewTime(time.Now().Add(-time.Hour)))
				m.Status.ContainerStatuses = lost("app", runs)
				if pod == etcd {
					m.Status.InitContainerStatuses = append(lost("prepare", ended), lost("fetch", ended)...)
				}
			})
			mirrors[types.NamespacedName{Namespace: m.Namespace, Name: m.Name}] = m
		}
		w.change(func(set *pods.Set) { set.Mirrors = mirrors })
		w.sleep(30 * time.Second)
		w.checkRunning("api/app#0", "etcd/fetch#0")
		if c := containerStatus(w.status(apiPod("api")), "app"); !c.Ready || c.RestartCount != 3 {
			t.Errorf("got status %+v, want it ready after three restarts", c)
		}
		w.sleep(time.Minute)
		w.checkRunning("api/app#0", "etcd/app#4")
		if n := len(w.starts()); n != 4 {
			t.Errorf("got %d starts, want one of each container", n)
		}
	})
}

// TestLateMirrorRepeatsNothing checks that an init container that has succeeded does not run again when the mirror pod
// shows an instance with a higher number that the runtime has lost.
func TestLateMirrorRepeatsNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("prepare", fake.Script{RunsFor: time.Second})
		w.runtime.Publish(fake.RemoteImage{Name: "large:1", Takes: time.Minute})
		pod := staticPod("web", "0123", withInit("prepare"))
		pod.Spec.Containers[0].Image = "large:1"
		w.runMirrored(pod)
		w.sleep(30 * time.Second)
		mirror := apiPod("web", func(m *corev1.Pod) {
			m.Annotations["kubernetes.io/config.mirror"] = "0123"
			m.Status.Phase, m.Status.StartTime = corev1.PodRunning, ptr(metav1.NewTime(time.Now().Add(-time.Hour)))
			m.Status.InitContainerStatuses = []corev1.ContainerStatus{{
				Name:         "prepare",
				ContainerID:  "containerd://lost",
				RestartCount: 3,
				State:        corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}},
			}}
		})
		w.runMirrored(pod, mirror)
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
		if n := len(w.starts()); n != 2 {
			t.Errorf("got %d starts, want one of each container", n)
		}
	})
}

// TestAttemptsAfterReboot checks that a static pod whose instances the runtime has lost, and whose mirror pod is not
// known yet, goes on with the number after the highest of its logs.
func TestAttemptsAfterReboot(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(staticPod("web", "0123", withSidecar("proxy")))
		w.sleep(time.Second)
		w.checkRunning("web/proxy#0", "web/app#0")
		w.end()
		for _, s := range w.runtime.Sandboxes() {
			lost := &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.Id}
			if _, err := w.runtime.RemovePodSandbox(t.Context(), lost); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"0.log", "2.log", "3.log.20260101-000000.gz"} {
			if err := os.WriteFile(w.path("logs/default_web_0123/app/"+name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w.begin()
		w.sleep(time.Second)
		w.checkRunning("web/proxy#0", "web/app#4")
		w.exit("app", 1)
		w.sleep(time.Second)
		w.checkRunning("web/proxy#0", "web/app#5")
	})
}

// TestFirstMirrorPod checks that a static pod keeps the time of its start when its first mirror pod is created long
// after it, as on a node whose API server is such a pod. The API server makes a new pod Pending.
func TestFirstMirrorPod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := staticPod("web", "0123")
		began := time.Now()
		w.runMirrored(pod)
		w.sleep(time.Hour)
		mirror := apiPod("web", func(m *corev1.Pod) {
			m.Annotations["kubernetes.io/config.mirror"] = "0123"
			m.Status = corev1.PodStatus{Phase: corev1.PodPending}
		})
		w.runMirrored(pod, mirror)
		w.sleep(time.Minute)
		if st := w.status(mirror); !ready(st) || st.StartTime.Sub(began) > time.Minute {
			t.Errorf("got status %+v, want it Ready since %s", st, began)
		}
	})
}

// runMirrored runs a static pod that has these mirror pods, at most one.
func (w *world) runMirrored(pod *corev1.Pod, mirrors ...*corev1.Pod) {
	w.change(func(set *pods.Set) {
		set.Pods[pod.UID], set.Mirrors = pod, map[types.NamespacedName]*corev1.Pod{}
		for _, m := range mirrors {
			set.Mirrors[types.NamespacedName{Namespace: m.Namespace, Name: m.Name}] = m
		}
	})
}
