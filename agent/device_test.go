package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/plugins/devices/checkpoint"
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

// TestDevicesWithoutPlugin: while a plugin has not registered, a pod that has its device waits and says for what, a
// pod that has none is refused as by the kubelet, and the device of a pod that goes is given back.
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
		waiting := containerStatus(w.status(has), "app").State.Waiting
		if waiting == nil || waiting.Reason != "CreateContainerConfigError" ||
			!strings.Contains(waiting.Message, "has not registered since") {
			t.Errorf("the pod that has its device waits for %+v", waiting)
		}
		st := w.status(wants)
		want := "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nodelet.test/fake, which is unexpected"
		if st.Phase != corev1.PodFailed || st.Reason != "UnexpectedAdmissionError" || !strings.Contains(st.Message, want) {
			t.Errorf("the pod that has none: %s, %s, %s", st.Phase, st.Reason, st.Message)
		}
		w.delete(has, 0)
		w.delete(wants, 0)
		w.sleep(time.Minute)
		w.checkNothingLeft()
		text, err := os.ReadFile(w.checkpointPath())
		entries, _, readErr := checkpoint.Unmarshal(text)
		if err != nil || readErr != nil || len(entries) > 0 {
			t.Errorf("given out: %+v; %v, %v", entries, err, readErr)
		}
	})
}
