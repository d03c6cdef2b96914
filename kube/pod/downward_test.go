package pod_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func TestField(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:        "web-0",
		Namespace:   "shop",
		UID:         "11111111-2222-3333-4444-555555555555",
		Labels:      map[string]string{"app": "web", "tier": `a"b`},
		Annotations: map[string]string{"example.com/Note": "line\nbreak"},
	}}
	for path, tt := range map[string]struct{ want, err string }{
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
	} {
		got, err := podutil.Field(pod, path)
		if got != tt.want || (err == nil) != (tt.err == "") {
			t.Errorf("%s: got %q, %v; want %q, %s", path, got, err, tt.want, tt.err)
		}
		if err != nil && !strings.HasPrefix(err.Error(), tt.err) {
			t.Errorf("%s: got error %v, want %s", path, err, tt.err)
		}
	}
}

func TestResourceField(t *testing.T) {
	q := resource.MustParse
	full := &corev1.Container{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			"cpu": q("250m"), "memory": q("100Mi"), "ephemeral-storage": q("1500M"), "hugepages-2Mi": q("4Mi"),
		},
		Limits: corev1.ResourceList{"cpu": q("1500m"), "memory": q("1Gi"), "hugepages-2Mi": q("4Mi")},
	}}
	empty := &corev1.Container{}
	defaults := corev1.ResourceList{
		"cpu": q("3920m"), "memory": q("8Gi"), "ephemeral-storage": q("90G"), "hugepages-2Mi": q("1Gi"),
	}
	for _, tt := range []struct {
		container         *corev1.Container
		resource, divisor string
		want              string // "" is an error
	}{
		{full, "requests.cpu", "0", "1"},
		{full, "requests.cpu", "1m", "250"},
		{full, "limits.cpu", "1", "2"},
		{full, "requests.memory", "1Mi", "100"},
		{full, "limits.memory", "1G", "2"},
		{full, "requests.ephemeral-storage", "1Gi", "2"},
		{full, "limits.ephemeral-storage", "1G", "90"},
		{full, "limits.hugepages-2Mi", "1Mi", "4"},
		{empty, "limits.cpu", "1m", "3920"},
		{empty, "limits.memory", "0", "8589934592"},
		{empty, "requests.memory", "0", "0"},
		{empty, "limits.hugepages-2Mi", "1Mi", "0"},
		{empty, "limits.cpu", "-1", "4"},
		{full, "limits.example.com/gpu", "1", ""},
		{full, "cpu", "1", ""},
		{full, "", "1", ""},
		{full, "used.cpu", "1", ""},
	} {
		ref := &corev1.ResourceFieldSelector{Resource: tt.resource, Divisor: q(tt.divisor)}
		got, err := podutil.ResourceField(tt.container, ref, defaults)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s in units of %s: got %q, %v; want %q", tt.resource, tt.divisor, got, err, tt.want)
		}
	}
	ref := &corev1.ResourceFieldSelector{Resource: "limits.cpu"}
	if got, err := podutil.ResourceField(empty, ref, nil); err != nil || got != "0" {
		t.Errorf("no limit and no default: got %q, %v; want 0", got, err)
	}
}
