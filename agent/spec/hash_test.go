package spec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The values come from the kubelet's own function. The first is the one its tests have held fixed since v1.31. Should this
// test fail, an upgrade of the agent would restart every container of every cluster.
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

func TestHashChanged(t *testing.T) {
	c := &corev1.Container{Name: "app", Image: "registry.k8s.io/pause:3.10"}
	for recorded, want := range map[string]bool{
		"ed432b69":         false,
		"edd67cc4":         true,
		"":                 false, // made by an agent that records none
		"v2:whatever":      false, // made by an agent with a newer recipe
		"123456789abcdef0": false, // more bits than this recipe has
	} {
		if got := HashChanged(recorded, c); got != want {
			t.Errorf("recorded %q: changed is %v, want %v", recorded, got, want)
		}
	}
}
