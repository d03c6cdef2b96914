package spec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// TestFailsClosedInEveryKind checks that a setting that is rejected in one kind of container is rejected in all
// kinds, also in init and ephemeral containers (the class of CVE-2023-2727, CVE-2023-2728, CVE-2024-3177).
func TestFailsClosedInEveryKind(t *testing.T) {
	bad := map[string]corev1.Container{
		"seccomp without a profile": {SecurityContext: &corev1.SecurityContext{
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost}}},
		"AppArmor of an unknown type": {
			SecurityContext: &corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: "x"}},
		},
		"procMount of an unknown kind": {SecurityContext: &corev1.SecurityContext{ProcMount: new(corev1.ProcMountType("x"))}},
		"root against runAsNonRoot": {SecurityContext: &corev1.SecurityContext{RunAsNonRoot: new(true),
			RunAsUser: new(int64(0))}},
		"user below zero": {SecurityContext: &corev1.SecurityContext{RunAsUser: new(int64(-1))}},
		"an invalid capability name": {SecurityContext: &corev1.SecurityContext{
			Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS ADMIN"}}}},
		"envFrom with a missing Secret": {EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "none"}}}}},
		"mounts propagated to the node": {VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v",
			MountPropagation: new(corev1.MountPropagationBidirectional)}}},
		"a sub-path out of the volume": {VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: "../x"}}},
	}
	for name, c := range bad {
		c.Name, c.Image = "c", "image"
		for kind, put := range kinds(c) {
			in := testInput()
			in.Volumes = map[string]Volume{"v": {HostPath: "/host/v"}}
			in.Pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "image"}}
			put(&in.Pod.Spec)
			_, in.Container = podutil.Container(&in.Pod.Spec, "c")
			if config, err := Container(in); err == nil {
				t.Errorf("%s in %s: got %v, want an error", name, kind, config.Linux.SecurityContext)
			}
		}
	}
}

// kinds returns functions that add a container to a pod, one for each kind of container.
func kinds(c corev1.Container) map[string]func(*corev1.PodSpec) {
	return map[string]func(*corev1.PodSpec){
		"an app container":  func(s *corev1.PodSpec) { s.Containers = append(s.Containers, c) },
		"an init container": func(s *corev1.PodSpec) { s.InitContainers = append(s.InitContainers, c) },
		"a sidecar": func(s *corev1.PodSpec) {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
			s.InitContainers = append(s.InitContainers, c)
		},
		"an ephemeral container": func(s *corev1.PodSpec) {
			s.EphemeralContainers = append(s.EphemeralContainers, corev1.EphemeralContainer{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon(c)})
		},
	}
}

// TestUserIsTheSameInEveryInstance checks that the user of a container depends only on its spec and image. It is the
// same in every instance, whether the image was pulled or already present (in CVE-2019-11245 the second instance ran
// as root).
func TestUserIsTheSameInEveryInstance(t *testing.T) {
	for attempt := range uint32(4) {
		in := testInput()
		in.Attempt, in.Image = attempt, Image{Ref: "sha256:x", UID: new(int64(1000))}
		in.Container.SecurityContext = &corev1.SecurityContext{RunAsNonRoot: new(true)}
		config, err := Container(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := config.Linux.SecurityContext.GetRunAsUser().GetValue(); got != 1000 {
			t.Errorf("instance %d: got user %d, want 1000", attempt, got)
		}
	}
}
