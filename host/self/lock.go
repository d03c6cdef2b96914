package self

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/filelock"
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

// endingTakes is how long LockRoot waits for an agent that is ending, and lockInterval how often it tries again.
const (
	endingTakes  = time.Second
	lockInterval = 20 * time.Millisecond
)

// LockRoot ensures that no other agent uses the root directory. It waits for one that is ending: a killed process keeps
// its files open, and the lock with them, until the kernel has ended its last thread. A kubelet takes no lock, but it
// listens at a socket.
func LockRoot(ctx context.Context, root string) (unlock func(), err error) {
	if err := os.MkdirAll(root, 0o750); err != nil {
		return nil, fmt.Errorf("make root directory: %w%s", err, cure(err))
	}
	f, err := os.OpenFile(filepath.Join(root, "nodelet.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file of the root directory: %w%s", err, cure(err))
	}
	if err := lock(ctx, f, root); err != nil {
		_ = f.Close()
		return nil, err
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

// lock takes the lock of a file of the root directory, which has the PID of the agent that holds it.
func lock(ctx context.Context, f *os.File, root string) error {
	ending, cancel := context.WithTimeout(ctx, endingTakes)
	defer cancel()
	err := filelock.Wait(ending, f, lockInterval)
	if errors.Is(err, context.DeadlineExceeded) {
		holder, _ := os.ReadFile(f.Name())
		return fmt.Errorf("another agent (pid %s) works in %s: stop it first, or give this one another --root-dir",
			strings.TrimSpace(string(holder)), root)
	}
	if err != nil {
		return fmt.Errorf("lock root directory: %w", err)
	}
	return nil
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
