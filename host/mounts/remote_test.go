package mounts

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/ownmounts"
)

// TestRemote checks that only remote file systems are opened by a mount of their own: after the unmount of a disk
// nothing may use it.
func TestRemote(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	dir := t.TempDir()
	refused := func(what string) {
		t.Helper()
		if f, err := Remote(dir); f != nil || !errors.Is(err, errLocal) {
			t.Errorf("%s: got %v, %v, want errLocal", what, f, err)
		}
	}
	refused("a directory")
	daemon := ownmounts.FUSE(t, dir)
	defer daemon.End()
	f, err := Remote(dir)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	refused("a file system in memory, on top")
	if err := unix.Unmount(dir, 0); err != nil {
		t.Error(err)
	}
}
