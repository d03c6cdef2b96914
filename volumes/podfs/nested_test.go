package podfs

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func mountedAt(name, path string) corev1.VolumeMount {
	return corev1.VolumeMount{Name: name, MountPath: path}
}

func mountPoints(t *testing.T, mounts []corev1.VolumeMount) []string {
	t.Helper()
	got, err := nestedMountPoints("v", &corev1.PodSpec{Containers: []corev1.Container{{VolumeMounts: mounts}}})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestOutermostMountPoints compares with a plain search. Names such as a-b are before a/b in the order of strings.
func TestOutermostMountPoints(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "b", "a-b", "a.b", "a0"}
	for range 2000 {
		var mounts []corev1.VolumeMount
		for i := range 1 + random.IntN(8) {
			path := ""
			for range random.IntN(5) {
				path += "/" + names[random.IntN(len(names))]
			}
			mounts = append(mounts, mountedAt([]string{"v", "w"}[i%2], path+"/"))
		}
		if got, want := mountPoints(t, mounts), plainMountPoints(mounts); !slices.Equal(got, want) {
			t.Fatalf("%v: got %q, want %q", mounts, got, want)
		}
	}
}

// plainMountPoints returns the mount points below one of volume v that have no other one between them and it.
func plainMountPoints(mounts []corev1.VolumeMount) []string {
	below := func(path, other string) bool { return strings.HasPrefix(path, other+"/") }
	var found []string
	for _, base := range mounts {
		from := filepath.Clean(base.MountPath)
		for _, m := range mounts {
			path := filepath.Clean(m.MountPath)
			between := slices.ContainsFunc(mounts, func(o corev1.VolumeMount) bool {
				other := filepath.Clean(o.MountPath)
				return below(path, other) && below(other, from)
			})
			if base.Name == "v" && below(path, from) && !between {
				found = append(found, path[len(from)+1:])
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// TestManyMountPoints checks that a pod cannot keep the node busy with its mounts: each one is compared with few
// others, whether they are of the same volume or not. A comparison of long paths that joins them allocates memory.
func TestManyMountPoints(t *testing.T) {
	const mounts, each = 300, 10
	parent := "/" + strings.Repeat("parent", 10)
	others, same := []corev1.VolumeMount{mountedAt("v", parent)}, []corev1.VolumeMount{}
	for i := range mounts {
		others = append(others, mountedAt("w", fmt.Sprintf("%s/%s%03d", parent, parent, i)))
		same = append(same, mountedAt("v", fmt.Sprintf("%s%03d", parent, i)))
	}
	for name, c := range map[string]struct {
		mounts []corev1.VolumeMount
		want   int
	}{
		"other volumes in one": {others, mounts},
		"one volume":           {same, 0},
	} {
		got := testing.AllocsPerRun(5, func() {
			if found := mountPoints(t, c.mounts); len(found) != c.want {
				t.Fatalf("%s: got %d mount points in the volume, want %d", name, len(found), c.want)
			}
		})
		if got > mounts*each {
			t.Errorf("%s: got %.0f allocations for %d mounts, want at most %d each", name, got, mounts, each)
		}
	}
}
