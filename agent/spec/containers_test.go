package spec

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func podOfAllKinds() *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	onFailure := corev1.ContainerRestartPolicyOnFailure
	return &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{
			{Name: "setup", Image: "i1"}, {Name: "proxy", Image: "i2", RestartPolicy: &always}, {Name: "again", Image: "i3", RestartPolicy: &onFailure},
		},
		Containers:          []corev1.Container{{Name: "app", Image: "i4", ImagePullPolicy: "Never"}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "i5"}}},
		Volumes: []corev1.Volume{
			{Name: "model", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "i6", PullPolicy: "Always"}}},
			{Name: "later", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}},
			{Name: "other"},
		},
	}}
}

func TestContainers(t *testing.T) {
	pod := podOfAllKinds()
	var got []string
	for kind, c := range Containers(pod) {
		got = append(got, kind.String()+" "+c.Name)
	}
	if want := []string{"init setup", "sidecar proxy", "init again", "app app", "ephemeral debug"}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	for stop := 1; stop <= len(got); stop++ {
		seen := 0
		for range Containers(pod) {
			if seen++; seen == stop {
				break
			}
		}
		if seen != stop {
			t.Errorf("%d containers after a break at %d", seen, stop)
		}
	}
	if kind, c := FindContainer(pod, "proxy"); kind != Sidecar || c != &pod.Spec.InitContainers[1] {
		t.Errorf("%v %v", kind, c)
	}
	if _, c := FindContainer(pod, "none"); c != nil {
		t.Errorf("%v", c)
	}
	if Kind(9).String() != "unknown" {
		t.Error("an unknown kind has a name")
	}
}

func TestImages(t *testing.T) {
	want := []ImageUse{
		{Image: "i1", Container: "setup"}, {Image: "i2", Container: "proxy"}, {Image: "i3", Container: "again"},
		{Image: "i4", Policy: "Never", Container: "app"}, {Image: "i5", Container: "debug"},
		{Image: "i6", Policy: "Always", Volume: "model"},
	}
	if diff := cmp.Diff(want, Images(podOfAllKinds())); diff != "" {
		t.Error(diff)
	}
}
