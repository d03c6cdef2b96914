package podfs

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestPodField(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ want, err string }{
		"metadata.name":                            {want: "web-0"},
		"metadata.namespace":                       {want: "shop"},
		"metadata.uid":                             {want: "11111111-2222-3333-4444-555555555555"},
		"metadata.labels":                          {want: "app=\"web\"\ntier=\"a\\\"b\""},
		"metadata.annotations":                     {want: `example.com/Note="line\nbreak"`},
		"metadata.labels['app']":                   {want: "web"},
		"metadata.labels['none']":                  {want: ""},
		"metadata.annotations['example.com/Note']": {want: "line\nbreak"},
		"metadata.labels['a b']":                   {err: "invalid key subscript in metadata.labels['a b']: "},
		"metadata.name['x']":                       {err: `fieldPath "metadata.name['x']" does not support subscript`},
		"status.podIP":                             {err: "unsupported fieldPath: status.podIP"},
		"['x']":                                    {err: "unsupported fieldPath: ['x']"},
		"":                                         {err: "unsupported fieldPath: "},
	}
	for path, tt := range tests {
		got, err := podField(testPod(), path)
		if got != tt.want || (err == nil) != (tt.err == "") {
			t.Errorf("%s: got %q, %v; want %q, %s", path, got, err, tt.want, tt.err)
		}
		if err != nil && (len(err.Error()) < len(tt.err) || err.Error()[:len(tt.err)] != tt.err) {
			t.Errorf("%s: error %v, want %s", path, err, tt.err)
		}
	}
}

func TestResourceField(t *testing.T) {
	t.Parallel()
	pod := testPod()
	q := resource.MustParse
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "full", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": q("250m"), "memory": q("100Mi"), "ephemeral-storage": q("1500M"), "hugepages-2Mi": q("4Mi")},
		Limits:   corev1.ResourceList{"cpu": q("1500m"), "memory": q("1Gi"), "hugepages-2Mi": q("4Mi")},
	}})
	pod.Spec.InitContainers = []corev1.Container{{Name: "init"}}
	allocatable := corev1.ResourceList{"cpu": q("3920m"), "memory": q("8Gi"), "ephemeral-storage": q("90G"), "hugepages-2Mi": q("1Gi")}
	tests := []struct {
		container, resource, divisor string
		want                         string // "" is an error
	}{
		{"full", "requests.cpu", "0", "1"},
		{"full", "requests.cpu", "1m", "250"},
		{"full", "limits.cpu", "1", "2"},
		{"full", "requests.memory", "1Mi", "100"},
		{"full", "limits.memory", "1G", "2"},
		{"full", "requests.ephemeral-storage", "1Gi", "2"},
		{"full", "limits.ephemeral-storage", "1G", "90"},
		{"full", "limits.hugepages-2Mi", "1Mi", "4"},
		{"main", "limits.cpu", "1m", "3920"},
		{"main", "limits.memory", "0", "8589934592"},
		{"main", "requests.memory", "0", "0"},
		{"main", "limits.hugepages-2Mi", "1Mi", "0"},
		{"init", "limits.cpu", "1", "4"},
		{"none", "limits.cpu", "1", ""},
		{"full", "limits.example.com/gpu", "1", ""},
		{"full", "cpu", "1", ""},
		{"full", "", "1", ""},
		{"full", "used.cpu", "1", ""},
	}
	for _, tt := range tests {
		ref := &corev1.ResourceFieldSelector{ContainerName: tt.container, Resource: tt.resource, Divisor: q(tt.divisor)}
		got, err := resourceField(pod, ref, allocatable)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%+v: got %q, %v", tt, got, err)
		}
	}
}

func TestDownwardAPI(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	source := corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
		DefaultMode: ptr(int32(0o644)),
		Items: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
			{Path: "limits/cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu"},
				Mode: ptr(int32(0o400))},
		},
	}}
	r := request(pod, "info", source)
	r.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4")}
	m := mustMount(t, v, r, nil)
	wantFiles(t, m.HostPath, map[string]string{"labels": "app=\"web\"\ntier=\"a\\\"b\"", "limits/cpu": "4"})
	pod.Labels = map[string]string{"app": "new"}
	if m := mustMount(t, v, r, nil); !m.Changed {
		t.Error("new labels did not change the volume")
	}
	wantFiles(t, m.HostPath, map[string]string{"labels": `app="new"`, "limits/cpu": "4"})
	if !isTmpfs(t, m.HostPath) {
		t.Error("not on tmpfs")
	}
}
