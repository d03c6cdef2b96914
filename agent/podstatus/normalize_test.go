package podstatus

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
)

// TestNormalized checks that a status has the form in which the API server returns it; otherwise each new status would
// differ from the stored one. Messages are valid UTF-8 and truncated between characters, times are whole seconds, and
// container statuses have the kubelet's order.
func TestNormalized(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.InitContainers = []corev1.Container{{Name: "z"}, {Name: "b"}}
	pod.Spec.Containers = []corev1.Container{{Name: "one"}, {Name: "app"}}
	at := time.Unix(1000, 678)
	st := Build(podstate.New(podstate.Desired{Pod: pod}, podstate.Observed{
		Now: at,
		Containers: []podstate.Container{{
			ID:         "1",
			Name:       "app",
			State:      podstate.ContainerExited,
			ExitCode:   1,
			StartedAt:  at,
			FinishedAt: at,
			Message:    strings.Repeat("é", messagesMax) + "\xff",
		}},
	}), Progress{})
	for i, want := range []string{"z", "b"} {
		if got := st.InitContainerStatuses[i].Name; got != want {
			t.Errorf("init container %d: got %s, want %s", i, got, want)
		}
	}
	for i, want := range []string{"app", "one"} {
		if got := st.ContainerStatuses[i].Name; got != want {
			t.Errorf("container %d: got %s, want %s", i, got, want)
		}
	}
	ended := st.ContainerStatuses[0].State.Terminated
	if want := messagesMax / 4; len(ended.Message) != want || !utf8.ValidString(ended.Message) {
		t.Errorf("got a message of %d bytes, valid %v, want %d valid bytes", len(ended.Message),
			utf8.ValidString(ended.Message), want)
	}
	if ended.FinishedAt.Nanosecond() != 0 || ended.StartedAt.Nanosecond() != 0 || st.StartTime.Nanosecond() != 0 {
		t.Errorf("got times %v, %v and %v, want whole seconds", ended.StartedAt, ended.FinishedAt, st.StartTime)
	}
}

// TestNeverStarted checks that an instance that could not be started has the start that the kubelet shows, and one that
// is lost has none.
func TestNeverStarted(t *testing.T) {
	failed := terminated(&podstate.Container{FinishedAt: time.Unix(1000, 0)}, "1")
	if lost := terminated(&podstate.Container{}, "2"); failed.StartedAt.Unix() != 0 || !lost.StartedAt.IsZero() {
		t.Errorf("got starts %v and %v, want 1970 and none", failed.StartedAt, lost.StartedAt)
	}
}

func TestTruncate(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{
		{"abc", 5, "abc"},
		{"abc", 2, "ab"},
		{"aé", 2, "a"},
		{"é", 1, ""},
		{"éé", 3, "é"},
	} {
		if got := truncate(c.text, c.limit); got != c.want {
			t.Errorf("%q to %d bytes: got %q, want %q", c.text, c.limit, got, c.want)
		}
	}
}
