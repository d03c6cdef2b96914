package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// state is the content of a testbed's state file, with which another process can describe the testbed or take it down.
type state struct {
	Options Options         `json:"options"`
	BootID  string          `json:"bootID"`
	Subnet  int             `json:"subnet"` // x of 10.77.x.0/24
	Procs   map[string]Proc `json:"procs"`  // by role, such as "etcd" or "n0.containerd"
}

// readState returns the testbed's state, or an error that wraps os.ErrNotExist if there is none.
func readState(path string) (state, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return state{}, err
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return state{}, fmt.Errorf("read %s: %w", path, err)
	}
	if s.BootID != bootID() {
		s.Procs = nil // a reboot has ended these processes
	}
	if s.Procs == nil {
		s.Procs = map[string]Proc{}
	}
	return s, nil
}

func writeState(path string, s state) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeAtomic(path, append(b, '\n'), 0o600)
}

// updateState changes the state file under the testbed's lock, because a test and the testbed command may change it
// concurrently.
func (n names) updateState(change func(*state)) error {
	unlock, err := lockDir(context.Background(), n.dir())
	if err != nil {
		return err
	}
	defer unlock()
	s, err := readState(n.stateFile())
	if err != nil {
		return fmt.Errorf("read state of testbed %q: %w", n.name, err)
	}
	change(&s)
	return writeState(n.stateFile(), s)
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// writeAtomic replaces a file atomically: a reader sees the old or the new content.
func writeAtomic(path string, data []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename, as intended
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(f.Name(), path)
}

// lock locks a part of the cache, which one process builds while others say that they wait.
func (c *Cache) lock(ctx context.Context, what string) (unlock func(), err error) {
	return LockFile(ctx, filepath.Join(c.dir, "."+what+".lock"), func() {
		fmt.Fprintf(c.progress, "%s: another process builds it, waiting\n", what)
	})
}

// noBuild is longer than any build takes.
const noBuild = 24 * time.Hour

// workDir makes a directory for a build, and removes those that killed builds have left.
func (c *Cache) workDir() (string, error) {
	const name = ".build-"
	left, err := filepath.Glob(filepath.Join(c.dir, name+"*"))
	for _, dir := range left {
		if info, statErr := os.Stat(dir); statErr == nil && time.Since(info.ModTime()) > noBuild {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	if err != nil {
		return "", fmt.Errorf("remove what killed builds have left: %w", err)
	}
	return os.MkdirTemp(c.dir, name)
}

// lockDir locks a directory itself, so that no lock file is left when the directory is removed.
func lockDir(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return Lock(ctx, f, func() {})
}

// LockFile does the same as Lock with a file that it creates if it is missing.
func LockFile(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return Lock(ctx, f, waiting)
}

// lockPoll is how often Lock looks whether the other process has released the lock. The kernel would wait without
// regard to ctx, and so to a signal.
const lockPoll = 100 * time.Millisecond

// Lock locks a file, which it closes with the lock or after an error. While another process has the lock, it calls
// waiting once, and waits until ctx ends. The kernel releases the lock when its holder exits.
func Lock(ctx context.Context, f *os.File, waiting func()) (unlock func(), err error) {
	for ; ; waiting = func() {} {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			waiting()
			select {
			case <-time.After(lockPoll):
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
}
