package ownmounts

import (
	"encoding/binary"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// Daemon serves a FUSE file system. It answers nothing that it is asked.
type Daemon struct {
	t *testing.T
	// connection is the descriptor of its connection to the kernel, -1 when it is closed.
	connection int
}

// FUSE mounts a file system on a directory. The kernel waits for its daemon with each call but umount. A machine
// without FUSE skips the test, as Need does.
func FUSE(t *testing.T, dir string) *Daemon {
	t.Helper()
	connection, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	Need(t, "FUSE", err)
	d := &Daemon{t, connection}
	t.Cleanup(d.End)
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", connection)
	Need(t, "FUSE", unix.Mount("fuse", dir, "fuse", 0, options))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // the test may have unmounted it
	return d
}

// Asked waits until the file system is asked for something. Call it once.
func (d *Daemon) Asked() {
	d.t.Helper()
	request := make([]byte, 1<<16)
	if _, err := unix.Read(d.connection, request); err != nil {
		d.t.Fatal(err)
	}
	answer := make([]byte, 16+64) // to FUSE_INIT: the header, and version 7.31 with what it writes at most
	binary.NativeEndian.PutUint32(answer, uint32(len(answer)))
	copy(answer[8:16], request[8:16])
	binary.NativeEndian.PutUint32(answer[16:], 7)
	binary.NativeEndian.PutUint32(answer[20:], 31)
	binary.NativeEndian.PutUint32(answer[36:], 4096)
	if _, err := unix.Write(d.connection, answer); err != nil {
		d.t.Fatal(err)
	}
	if _, err := unix.Read(d.connection, request); err != nil {
		d.t.Fatal(err)
	}
}

// End ends the daemon.
func (d *Daemon) End() {
	d.t.Helper()
	if d.connection < 0 {
		return
	}
	if err := unix.Close(d.connection); err != nil {
		d.t.Error(err)
	}
	d.connection = -1
}
