package ownmounts

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// FUSE mounts a file system on a directory whose daemon answers nothing until gone is called; then the daemon has gone.
// The test is skipped on a machine without FUSE.
func FUSE(t *testing.T, dir string) (gone func()) {
	t.Helper()
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip("needs FUSE: ", err)
	}
	t.Cleanup(func() { device.Close() })
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device.Fd())
	if err := unix.Mount("fuse", dir, "fuse", 0, options); err != nil {
		t.Skip("needs FUSE: ", err)
	}
	t.Cleanup(func() {
		device.Close()
		_ = unix.Unmount(dir, unix.MNT_DETACH) // the test may have unmounted it
	})
	return func() {
		if err := device.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
