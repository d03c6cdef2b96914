package plugins

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLabel checks the SELinux label of directories that containers of plugins mount.
func TestLabel(t *testing.T) {
	dir := t.TempDir()
	err := label(dir)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) {
		t.Skip("cannot set labels here: ", err)
	}
	got := make([]byte, 100)
	n, readErr := unix.Getxattr(dir, "security.selinux", got)
	if err != nil || readErr != nil {
		t.Fatal(err, readErr)
	}
	if got, want := string(got[:n]), "system_u:object_r:container_file_t:s0"; got != want {
		t.Errorf("got label %q, want %q", got, want)
	}
}
