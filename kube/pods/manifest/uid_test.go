package manifest

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The UIDs are those that the kubelet's own code of v1.36.3 gives these manifests at that place. Another UID here makes every
// static pod anew when a node changes hands.
func TestUIDIsTheKubelets(t *testing.T) {
	for file, want := range map[string]string{
		"plain.yaml":         "17b4587a402a1fa8f0647f9453727f30",
		"control-plane.yaml": "fe8d33914e6eb5e4867de49af3b72410",
		"much.yaml":          "97c4d7493e1ed8fa33a53f1bd0b78faa",
	} {
		text, err := os.ReadFile(filepath.Join("testdata/uid", file))
		if err != nil {
			t.Fatal(err)
		}
		if got := parseOne(t, string(text)).Hash; got != want {
			t.Errorf("%s: the UID is %s, and the kubelet's is %s", file, got, want)
		}
	}
}

// The table of internal fields has each field of v1, apart from those that the internal type does not have or has elsewhere. So
// a field that a newer API adds cannot be forgotten.
func TestInternalFieldsAreAll(t *testing.T) {
	without := map[reflect.Type][]string{
		reflect.TypeFor[corev1.PodSpec]():   {"DeprecatedServiceAccount", "HostNetwork", "HostPID", "HostIPC", "ShareProcessNamespace", "HostUsers"},
		reflect.TypeFor[corev1.PodStatus](): {"PodIP"},
	}
	extra := map[reflect.Type][]string{
		reflect.TypeFor[corev1.PodSecurityContext](): {"HostNetwork", "HostPID", "HostIPC", "ShareProcessNamespace", "HostUsers"},
	}
	for typ, fields := range internalFields {
		want := map[string]bool{}
		for i := range typ.NumField() {
			want[typ.Field(i).Name] = true
		}
		for _, name := range without[typ] {
			delete(want, name)
		}
		for _, name := range extra[typ] {
			want[name] = true
		}
		if got := slices.Sorted(slices.Values(fields)); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
			t.Errorf("%s: the table has %v\nwant %v", typ, got, slices.Sorted(maps.Keys(want)))
		}
	}
}
