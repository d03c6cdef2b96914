package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/plugins/devices/checkpoint"
	"github.com/nodelet/nodelet/test/cri/fake"
)

const deviceName = "nodelet.test/fake"

func withDevice(pod *corev1.Pod) {
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{deviceName: resource.MustParse("1")}
}

// checkpointPath is where it is kept who has which device.
func (w *world) checkpointPath() string { return w.path("device-plugins/kubelet_internal_checkpoint") }

// give writes a checkpoint in which the pod has a device, as an earlier run of the agent does.
func (w *world) give(pod *corev1.Pod) {
	w.t.Helper()
	text, err := checkpoint.Marshal([]checkpoint.PodDevicesEntry{{
		PodUID:        string(pod.UID),
		ContainerName: "app",
		ResourceName:  deviceName,
		DeviceIDs:     checkpoint.DevicesPerNUMA{checkpoint.WithoutNUMA: {"d1"}},
	}}, map[string][]string{deviceName: {"d1"}})
	if err == nil {
		err = os.MkdirAll(filepath.Dir(w.checkpointPath()), 0o750)
	}
	if err == nil {
		err = os.WriteFile(w.checkpointPath(), text, 0o600)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestDevicesWithoutPlugin checks that while a plugin has not registered, a pod that has its device waits and says
// for what, and a pod that has none is refused as by the kubelet. If the plugin does not register in time, the pod
// that waits is refused as well. The devices of pods that go are free.
func TestDevicesWithoutPlugin(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		has, wants := apiPod("has", withDevice), apiPod("wants", withDevice)
		w.end()
		w.give(has)
		w.begin()
		w.run(has)
		w.sleep(time.Second)
		w.run(wants)
		w.sleep(time.Second)
		w.checkRunning()
		w.checkWaits(has, "its devices", "device plugins have not prepared nodelet.test/fake")
		const want = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices " +
			"nodelet.test/fake, which is unexpected"
		w.checkWithoutDevices(wants, want)
		w.sleep(time.Minute)
		w.checkWithoutDevices(has, want)
		w.delete(has, 0)
		w.delete(wants, 0)
		w.sleep(time.Minute)
		w.checkNothingLeft()
		w.checkNoneGiven()
	})
}

// TestNoPreemptionWithoutDevices checks that no pod ends for a critical one that is refused because it cannot have its
// devices.
func TestNoPreemptionWithoutDevices(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.end()
		w.give(apiPod("gone")) // so that the node knows the resource, but has no plugin
		w.begin()
		w.run(apiPod("low", withCPU("3")))
		w.sleep(time.Second)
		critical := apiPod("critical", withCPU("3"), withDevice, withPriority(systemCritical))
		w.run(critical)
		w.sleep(time.Minute)
		w.checkRunning("low/app#0")
		w.checkWithoutDevices(critical, "no healthy devices present")
	})
}

// checkWithoutDevices checks that a pod was refused for its devices.
func (w *world) checkWithoutDevices(pod *corev1.Pod, want string) {
	w.t.Helper()
	st := w.status(pod)
	if st.Phase != corev1.PodFailed || st.Reason != "UnexpectedAdmissionError" || !strings.Contains(st.Message, want) {
		w.t.Errorf("pod %s: got %s, %s, %s; want it Failed with %q", pod.Name, st.Phase, st.Reason, st.Message, want)
	}
}

// checkNoneGiven checks that no device is allocated.
func (w *world) checkNoneGiven() {
	w.t.Helper()
	text, err := os.ReadFile(w.checkpointPath())
	entries, _, readErr := checkpoint.Unmarshal(text)
	if err != nil || readErr != nil || len(entries) > 0 {
		w.t.Errorf("devices in use: got %+v, %v, %v, want none", entries, err, readErr)
	}
}

// TestDevicesAfterReboot checks a start of the agent before the plugin has registered. A pod that still runs is left
// alone. A pod of which nothing runs waits for the plugin, is not ready meanwhile, and is refused in the end, but a
// static pod, which no controller would replace, goes on waiting.
func TestDevicesAfterReboot(t *testing.T) {
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		reboot bool
		check  func(w *world, pod *corev1.Pod)
	}{
		"only the agent restarts": {apiPod("web", withDevice), false, func(w *world, _ *corev1.Pod) {
			w.checkRunning("web/app#0")
		}},
		"reboot": {apiPod("web", withDevice), true, func(w *world, pod *corev1.Pod) {
			w.checkRunning()
			w.checkWithoutDevices(pod, "cannot allocate unhealthy devices nodelet.test/fake")
			w.checkNoneGiven()
		}},
		"reboot with a static pod": {staticPod("web", "0123", withDevice), true, func(w *world, pod *corev1.Pod) {
			w.checkRunning()
			w.checkWaits(pod, "app", "has not registered since")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				pod := test.pod
				w.run(pod) // no plugin has been seen: the node does not know the resource
				w.sleep(time.Second)
				w.checkRunning("web/app#0")
				w.end()
				w.give(pod)
				if test.reboot {
					w.runtime.Crash(true)
					if err := w.runtime.Restart(); err != nil {
						t.Fatal(err)
					}
				}
				w.begin()
				w.sleep(time.Second)
				if !podutil.IsStatic(pod) { // no API server has its status
					w.checkReady(pod, !test.reboot)
				}
				w.agent.InstanceEnded(pod.UID, cri.Instance{Container: "gone"}) // hints may come before the pod is admitted again
				w.agent.HealthChanged([]types.UID{pod.UID})
				w.sleep(time.Minute)
				test.check(w, pod)
			})
		})
	}
}

// checkReady checks that the agent has published whether a pod is ready.
func (w *world) checkReady(pod *corev1.Pod, ready bool) {
	w.t.Helper()
	st := w.status(pod)
	if c := podutil.Condition(st.Conditions, corev1.PodReady); c == nil || (c.Status == corev1.ConditionTrue) != ready {
		w.t.Errorf("pod %s: got the condition %v, want Ready to be %t", pod.Name, c, ready)
	}
}

// TestResumedPodGetsDevices checks a pod that waits for the plugin of its devices after a reboot. Meanwhile it is not
// ready, nothing of it is made, and its source can end it. When the plugin has registered, it runs.
func TestResumedPodGetsDevices(t *testing.T) {
	for name, test := range map[string]func(w *world, d *slowDevices, pod *corev1.Pod){
		"the plugin registers": func(w *world, d *slowDevices, pod *corev1.Pod) {
			d.answers <- nil
			w.sleep(time.Minute)
			w.checkRunning("web/app#1")
			w.checkReady(pod, true)
		},
		"the pod is deleted": func(w *world, _ *slowDevices, pod *corev1.Pod) {
			w.delete(pod, 0)
			w.sleep(time.Second)
			w.checkNothingLeft()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				pod := apiPod("web", withDevice)
				w.run(pod)
				w.sleep(time.Second)
				w.end()
				w.runtime.Crash(true)
				if err := w.runtime.Restart(); err != nil {
					t.Fatal(err)
				}
				d := &slowDevices{answers: make(chan error), away: true}
				w.devices = d
				w.begin()
				w.sleep(time.Second)
				w.checkReady(pod, false)
				w.checkWaits(pod, "its devices", "the device plugins of nodelet.test/fake have not registered again")
				changed := *pod
				changed.Labels = map[string]string{"changed": "yes"} // which does not let it in
				w.run(&changed)
				w.sleep(anHour)
				w.checkReady(pod, false)
				if n := len(w.runtime.Sandboxes()); n > 1 {
					t.Errorf("got %d sandboxes, want that of before the reboot at most", n)
				}
				test(w, d, &changed)
			})
		})
	}
}

// TestCompletedPodNeedsNoDevices checks that a pod that had completed keeps its result if its devices do not come back
// after a reboot, and that no event says that it is refused, whether or not the API server learns of its end meanwhile.
func TestCompletedPodNeedsNoDevices(t *testing.T) {
	for name, unheard := range map[string]bool{"shown": false, "not shown": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) { completeWithoutDevices(t, w, unheard) })
		})
	}
}

// completeWithoutDevices reboots the node after a pod has ended, of which the API server has not heard. unheard: it
// does not hear of it for another minute either.
func completeWithoutDevices(t *testing.T, w *world, unheard bool) {
	w.runtime.Script("app", fake.Script{RunsFor: 5 * time.Second})
	w.amnesia = true // the API never hears of the end
	pod := apiPod("job", withDevice, withRestart(corev1.RestartPolicyNever))
	w.run(pod)
	w.sleep(10 * time.Second)
	w.end()
	w.amnesia = false
	w.give(pod)
	w.runtime.Crash(true)
	if err := w.runtime.Restart(); err != nil {
		t.Fatal(err)
	}
	w.begin()
	w.sleep(time.Second)
	if !unheard {
		w.publish(w.agent)
		w.deliver()
	}
	w.sleep(time.Minute)
	if got := w.eventsWith("UnexpectedAdmissionError"); len(got) > 0 {
		t.Errorf("got the events %q, want none", got)
	}
	w.publish(w.agent)
	if st := w.status(pod); st.Phase != corev1.PodSucceeded || st.Reason != "" {
		t.Errorf("got phase %s with reason %q, want %s without", st.Phase, st.Reason, corev1.PodSucceeded)
	}
}
