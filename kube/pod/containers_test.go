package pod_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func allRoles() *corev1.PodSpec {
	always, onFailure := corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyOnFailure
	debug := corev1.EphemeralContainer{TargetContainerName: "app"}
	debug.Name = "debug"
	return &corev1.PodSpec{
		InitContainers: []corev1.Container{
			{Name: "setup"},
			{Name: "proxy", RestartPolicy: &always},
			{Name: "again", RestartPolicy: &onFailure},
		},
		Containers:          []corev1.Container{{Name: "app"}},
		EphemeralContainers: []corev1.EphemeralContainer{debug},
	}
}

func TestContainers(t *testing.T) {
	spec := allRoles()
	var got []string
	for role, c := range podutil.Containers(spec) {
		got = append(got, role.String()+" "+c.Name)
	}
	want := []string{"init setup", "sidecar proxy", "init again", "app app", "ephemeral debug"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := podutil.Count(spec); n != len(want) {
		t.Errorf("Count: got %d, want %d", n, len(want))
	}
	for stop := 1; stop <= len(want); stop++ {
		seen := 0
		for range podutil.Containers(spec) {
			if seen++; seen == stop {
				break
			}
		}
		if seen != stop {
			t.Errorf("break at %d: got %d containers, want %d", stop, seen, stop)
		}
	}
	if got := podutil.Role(9).String(); got != "unknown" {
		t.Errorf("role 9: got %q, want unknown", got)
	}
}

// TestContainersAreTheSpecs checks that a caller that owns the spec changes it through the iterator, ephemeral
// containers too.
func TestContainersAreTheSpecs(t *testing.T) {
	spec := allRoles()
	for _, c := range podutil.Containers(spec) {
		c.Image = "changed"
	}
	for _, c := range podutil.Containers(spec) {
		if c.Image != "changed" {
			t.Errorf("container %s: got image %q, want changed", c.Name, c.Image)
		}
	}
}

func TestContainer(t *testing.T) {
	spec := allRoles()
	if role, c := podutil.Container(spec, "proxy"); role != podutil.RoleSidecar || c != &spec.InitContainers[1] {
		t.Errorf("proxy: got %v %v, want the sidecar of the spec", role, c)
	}
	if _, c := podutil.Container(spec, "none"); c != nil {
		t.Errorf("none: got %v, want nil", c)
	}
}

func TestTarget(t *testing.T) {
	spec := allRoles()
	for name, want := range map[string]string{"debug": "app", "app": "", "none": ""} {
		if got := podutil.Target(spec, name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
