package main

import (
	"fmt"
	"strings"
	"testing"
)

// TestForgottenTasksAreIdentified compares what is left with what the log of the runtime says about each of them.
func TestForgottenTasksAreIdentified(t *testing.T) {
	one, two := strings.Repeat("1", 64), strings.Repeat("2", 64)
	canceled := fmt.Sprintf(`level=error msg="StartContainer for \"%s\" failed" error="context canceled"`, one)
	other := fmt.Sprintf("level=info msg=\"StopContainer for \\\"%s\\\"\"\n%s", two, canceled)
	ended := "node: container " + one + " (app), CONTAINER_EXITED"
	mounted := "node: mount /n/run/io.containerd.runtime.v2.task/k8s.io/" + one + "/rootfs"
	for _, test := range []struct {
		left, log string
		want      bool
	}{
		{ended, canceled, true},
		{mounted, canceled, true},
		{"node: container " + two + " (app), CONTAINER_EXITED", other, false},
		{"node: mount /n/run/io.containerd.runtime.v2.task/k8s.io/" + two + "/rootfs", other, false},
		{ended, "level=error error=\"context canceled\"\nStartContainer for " + one, false},
		{"node: container " + one + " (app), CONTAINER_RUNNING", canceled, false},
		{"node: pod directory /n/kubelet/pods/" + one, canceled, false},
	} {
		left := []string{"node: pod directory /n/kubelet/pods/uid", test.left}
		if got := lostTask(left, []byte(test.log)); got != test.want {
			t.Errorf("left %q, log %q: got forgotten %v, want %v", test.left, test.log, got, test.want)
		}
	}
}
