package pod_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func TestContainerStatus(t *testing.T) {
	st := &corev1.PodStatus{
		InitContainerStatuses:      []corev1.ContainerStatus{{Name: "init"}},
		ContainerStatuses:          []corev1.ContainerStatus{{Name: "other"}, {Name: "app"}},
		EphemeralContainerStatuses: []corev1.ContainerStatus{{Name: "debug"}},
	}
	for name, want := range map[string]*corev1.ContainerStatus{
		"init":  &st.InitContainerStatuses[0],
		"app":   &st.ContainerStatuses[1],
		"debug": &st.EphemeralContainerStatuses[0],
		"none":  nil,
	} {
		if got := podutil.ContainerStatus(st, name); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

func TestCondition(t *testing.T) {
	st := &corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: "A", Status: "False"}, {Type: "B", Status: "True"}}}
	for name, want := range map[corev1.PodConditionType]*corev1.PodCondition{
		"A": &st.Conditions[0], "B": &st.Conditions[1], "C": nil,
	} {
		if got := podutil.Condition(st.Conditions, name); got != want {
			t.Errorf("Condition %s: got %v, want %v", name, got, want)
		}
		if got := podutil.IsTrue(st, name); got != (name == "B") {
			t.Errorf("IsTrue %s: got %v, want %v", name, got, (name == "B"))
		}
	}
}

func TestContainerIDs(t *testing.T) {
	shown := podutil.ContainerID("containerd", "abc")
	if want := "containerd://abc"; shown != want {
		t.Errorf("got %q, want %q", shown, want)
	}
	for shown, want := range map[string]string{"containerd://abc": "abc", "abc": "abc", "": "", "a://b://c": "b://c"} {
		if got := podutil.RuntimeID(shown); got != want {
			t.Errorf("%q: got %q, want %q", shown, got, want)
		}
	}
}
