package podstate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
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
