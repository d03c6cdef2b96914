package podfs

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestShareMounts checks that a directory on a private mount becomes a shared one of its own, once; one on a shared
// mount stays as it is.
func TestShareMounts(t *testing.T) {
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
		on, err := mountOf(below)
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
