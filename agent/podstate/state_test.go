package podstate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// TestTarget checks that an ephemeral container looks at the running instance of its target.
func TestTarget(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}, TargetContainerName: "app"},
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "alone"}},
	}}}
	s := New(Desired{Pod: pod}, Observed{Containers: []Container{
		{ID: "old", Name: "app", State: ContainerExited},
		{ID: "new", Name: "app", State: ContainerRunning},
		{ID: "other", Name: "other", State: ContainerRunning},
	}})
	for name, want := range map[string]string{"debug": "new", "alone": "", "app": ""} {
		if got := s.Target(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestNeverStartedForKubelet checks that the start of 1970, which the kubelet writes for an instance that could not be
// started, is no start: after a run of so many years the back-off would start over.
func TestNeverStartedForKubelet(t *testing.T) {
	c := FromStatus(&corev1.ContainerStatus{
		Name:  "app",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: podutil.ReasonCrashLoopBackOff}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Reason:     "StartError",
			StartedAt:  metav1.Unix(0, 0),
			FinishedAt: metav1.Now(),
		}},
		RestartCount: 5,
	})
	if !c.StartedAt.IsZero() || c.FinishedAt.IsZero() || c.ran() != 0 {
		t.Errorf("got times %v and %v, want no start", c.StartedAt, c.FinishedAt)
	}
}
