package status

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestFieldPath checks that events name the list that a container stands in.
func TestFieldPath(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "setup"}}, Containers: []corev1.Container{{Name: "app"}},
		EphemeralContainers: []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"},
		}},
	}}
	for name, want := range map[string]string{"setup": "spec.initContainers{setup}", "app": "spec.containers{app}",
		"debug": "spec.ephemeralContainers{debug}", "gone": ""} {
		if got := fieldPath(pod, name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
