package podfs

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestDownwardAPI(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	source := corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
		DefaultMode: new(int32(0o644)),
		Items: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
			{Path: "limits/cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu"},
				Mode: new(int32(0o400))},
		},
	}}
	r := request(pod, "info", source)
	r.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4")}
	m := mustMount(t, v, r, nil)
	wantFiles(t, m.HostPath, map[string]string{"labels": "app=\"web\"\ntier=\"a\\\"b\"", "limits/cpu": "4"})
	pod.Labels = map[string]string{"app": "new"}
	mustMount(t, v, r, nil)
	wantFiles(t, m.HostPath, map[string]string{"labels": `app="new"`, "limits/cpu": "4"})
	if !isTmpfs(t, m.HostPath) {
		t.Error("the volume: got another file system, want tmpfs")
	}
}

// TestDownwardResource checks that the node's allocatable resources are the default limits of all containers, as in the
// kubelet, and that ephemeral containers have no fields.
func TestDownwardResource(t *testing.T) {
	t.Parallel()
	pod := testPod()
	pod.Spec.InitContainers = []corev1.Container{{Name: "init"}}
	debug := corev1.EphemeralContainer{}
	debug.Name = "debug"
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{debug}
	r := Request{Pod: pod, Allocatable: corev1.ResourceList{"cpu": resource.MustParse("4")}}
	for container, want := range map[string]string{"main": "4", "init": "4", "debug": "", "none": ""} {
		got, err := downwardValue(r, corev1.DownwardAPIVolumeFile{
			ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: container, Resource: "limits.cpu"},
		})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v; want %q", container, got, err, want)
		}
	}
}
