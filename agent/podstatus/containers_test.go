package podstatus

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// TestInitRecordGone checks the status of a completed init container whose record the runtime has lost.
func TestInitRecordGone(t *testing.T) {
	for source, want := range map[string]string{"api": "", "file": messageTreatedAsDone} {
		pod := &corev1.Pod{}
		pod.Annotations = map[string]string{podutil.AnnotationSource: source}
		pod.Spec.InitContainers = []corev1.Container{{Name: "init"}}
		pod.Spec.Containers = []corev1.Container{{Name: "app"}}
		ended := &corev1.ContainerStateTerminated{Reason: "Completed", ContainerID: "cri://gone"}
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{
			Name:        "init",
			ContainerID: "cri://gone",
			State:       corev1.ContainerState{Terminated: ended},
		}}
		b := build(pod, podstate.Observed{
			Sandboxes:  []podstate.Sandbox{{ID: "s0", Ready: true, IPs: []string{"10.0.0.1"}}},
			Containers: []podstate.Container{{ID: "c0", Name: "app", SandboxID: "s0", State: podstate.ContainerRunning}},
		})
		b.containerStatuses()
		got := b.st.InitContainerStatuses[0].State.Terminated
		if got == nil || got.Reason != "Completed" || got.ContainerID != "cri://gone" || got.Message != want {
			t.Errorf("source %s: got %+v, want message %q", source, got, want)
		}
		if ended.Message != "" {
			t.Errorf("source %s: got a message in the reported status, want it unchanged", source)
		}
	}
}
