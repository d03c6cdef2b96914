package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// podOf returns a pod from YAML. It adds a name, a namespace and a UID if the text has none.
func podOf(t testing.TB, text string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace = "web", "default"
	pod.UID = "uid"
	fromYAML(t, text, pod)
	return pod
}

func fromYAML(t testing.TB, text string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
}

func ptr[T any](v T) *T { return &v }
