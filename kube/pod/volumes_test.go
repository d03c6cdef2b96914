package pod

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestUsedVolumes checks that a volume counts as used by containers of every kind, and only then.
func TestUsedVolumes(t *testing.T) {
	spec := &corev1.PodSpec{
		Volumes:        []corev1.Volume{{Name: "raw"}, {Name: "unused"}, {Name: "data"}, {Name: "late"}},
		InitContainers: []corev1.Container{{VolumeDevices: []corev1.VolumeDevice{{Name: "raw"}}}},
		Containers:     []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "data"}}}},
		EphemeralContainers: []corev1.EphemeralContainer{
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon{VolumeMounts: []corev1.VolumeMount{{Name: "late"}}}},
		},
	}
	used := map[string]bool{}
	for v := range UsedVolumes(spec) {
		used[v.Name] = true
	}
	for name, want := range map[string][2]bool{
		"raw":    {false, true},
		"data":   {true, false},
		"late":   {true, false},
		"unused": {false, false},
	} {
		if mounted, device := VolumeUse(spec, name); [2]bool{mounted, device} != want {
			t.Errorf("%s: got mounted %t and device %t, want %v", name, mounted, device, want)
		}
		if want := name != "unused"; used[name] != want {
			t.Errorf("%s: got used %t, want %t", name, used[name], want)
		}
	}
}
