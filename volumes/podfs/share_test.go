package podfs

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/kube/pluginname"
)

// privateMount mounts a file system with private propagation.
func privateMount(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes mounts")
	}
	top := t.TempDir()
	if err := unix.Mount("tmpfs", top, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(top, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", top, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	return top
}

// TestShareMounts checks that a directory on a private mount becomes a shared one of its own, once; one on a shared
// mount stays as it is.
func TestShareMounts(t *testing.T) {
	top := privateMount(t)
	root, link := filepath.Join(top, "root"), filepath.Join(top, "link")
	below := filepath.Join(root, "below")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("root", link); err != nil {
		t.Fatal(err)
	}
	var first int
	for i, dir := range []string{root, root, link, below} {
		if err := shareMounts(dir); err != nil {
			t.Fatal(err)
		}
		on, err := mounts.Of(below)
		if err != nil {
			t.Fatal(err)
		}
		if !shared(on) || on.Mountpoint != root {
			t.Errorf("call %d: %s: got the mount %s, %q, want a shared one at the root", i, below, on.Mountpoint, on.Optional)
		}
		if i == 0 {
			first = on.ID
		}
		if on.ID != first {
			t.Errorf("call %d: got another mount, want the first", i)
		}
	}
}

// TestShareMountsOfPods checks that what is mounted for pods stays visible when their directory becomes a shared mount,
// and goes with the pods.
func TestShareMountsOfPods(t *testing.T) {
	root := filepath.Join(privateMount(t), "root")
	v, err := New(Config{Log: discard, Root: root})
	if err != nil {
		t.Fatal(err)
	}
	pod := testPod()
	var paths []string
	for _, name := range []string{"one", "two"} {
		paths = append(paths, mustMount(t, v, request(pod, name, emptyDir(corev1.StorageMediumMemory)), nil).HostPath)
	}
	nested := filepath.Join(paths[0], "nested")
	if err := os.Mkdir(nested, 0o755); err != nil {
		t.Fatal(err)
	}
	bindMount(t, paths[1], nested)
	if err := shareMounts(root); err != nil {
		t.Fatal(err)
	}
	for _, path := range append(paths, nested) {
		if !isMountPoint(t, path) {
			t.Errorf("%s: got no mount, want one", path)
		}
	}
	if err := unix.Unmount(nested, 0); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"one", "two"} {
		if err := v.Unmount(t.Context(), pod.UID, OnDisk{pluginname.EmptyDir, name}); err != nil {
			t.Error(err)
		}
	}
	if err := v.RemovePodDir(t.Context(), pod.UID); err != nil {
		t.Error(err)
	}
}
