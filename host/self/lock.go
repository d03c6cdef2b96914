package self

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cure returns advice for an error of writing below the root directory.
func cure(err error) string {
	switch {
	case errors.Is(err, unix.EROFS):
		return ": mount it writable or choose another --root-dir"
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return ": nodelet needs root"
	case errors.Is(err, unix.ENOSPC):
		return ": free some space"
	}
	return ""
}

// LockRoot ensures that no other agent uses the root directory. The kernel releases the lock when the process ends. A
// kubelet takes no lock, but it listens at a socket.
func LockRoot(root string) (unlock func(), err error) {
	if err := os.MkdirAll(root, 0o750); err != nil {
		return nil, fmt.Errorf("make root directory: %w%s", err, cure(err))
	}
	path := filepath.Join(root, "nodelet.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file of the root directory: %w%s", err, cure(err))
	}
	if err := lock(f); err != nil {
		holder, _ := os.ReadFile(path)
		return nil, fmt.Errorf("another agent (pid %s) works in %s: stop it first, or give this one another --root-dir",
			strings.TrimSpace(string(holder)), root)
	}
	if listens(filepath.Join(root, "pod-resources", "kubelet.sock")) {
		_ = f.Close()
		return nil, fmt.Errorf("a kubelet works in %s: stop it first, such as with systemctl stop kubelet, or give "+
			"this agent another --root-dir", root)
	}
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return func() { _ = f.Close() }, nil
}

// endingTakes is how long lock waits, and lockPause how long between two attempts.
const (
	endingTakes = time.Second
	lockPause   = 20 * time.Millisecond
)

// lock locks a file. It waits for an agent that is ending: a killed process keeps its files open until the kernel has
// ended its last thread.
func lock(f *os.File) error {
	enough := time.After(endingTakes)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		select {
		case <-enough:
			return err
		case <-time.After(lockPause):
		}
	}
}

// listens reports whether a process listens at a socket. One that is too busy to accept a connection does.
func listens(socket string) bool {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return errors.Is(err, unix.EAGAIN)
	}
	_ = c.Close()
	return true
}
