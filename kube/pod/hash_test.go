package pod

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestContainerHash checks that the values come from the kubelet's own function. The kubelet's tests have had the
// first one since v1.31. If this test fails, an upgrade of the agent restarts every container of every cluster.
func TestContainerHash(t *testing.T) {
	for _, c := range []struct{ name, image, want string }{
		{"test_container", "foo/image:v1", "8e45cbd0"},
		{"app", "registry.k8s.io/pause:3.10", "ed432b69"},
		{"", "", "edd67cc4"},
		{"a<b>&", "x\u2028é\x00\xff\"\\", "78f0914e"},
		{"web", "nginx@sha256:0000000000000000000000000000000000000000000000000000000000000000", "d5cad864"},
	} {
		full := &corev1.Container{Name: c.name, Image: c.image, Command: []string{"does not count"}, TTY: true}
		if got := ContainerHash(full); got != c.want {
			t.Errorf("hash of %q %q: got %s, want %s", c.name, c.image, got, c.want)
		}
	}
}
