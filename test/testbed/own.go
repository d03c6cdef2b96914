package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ownersDir has a file for each name that a process has owned. Its owner has locked it, and it contains the parent of
// the testbed's state directory; without an owner it is empty, unless the owner was killed and what it has left is not
// cleared yet. The directory is the same for all processes, whatever StateEnv is.
const ownersDir = "/run/lock/nodelet-testbed"

// Own reserves the name of a testbed for this process, until release is called or the process ends. It waits while
// another process has it. Everything that processes have left under names that they owned until they were killed is
// taken down, whatever those names are: a test that was killed in another clone must not disturb this one.
func Own(ctx context.Context, name string, progress io.Writer) (release func(), err error) {
	n, err := newNames(name)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(ownersDir, 0o755); err != nil {
		return nil, fmt.Errorf("own testbed %q: %w", n.name, err)
	}
	f, err := openOwner(n.name)
	if err != nil {
		return nil, fmt.Errorf("own testbed %q: %w", n.name, err)
	}
	unlock, err := Lock(ctx, f, func() {
		fmt.Fprintf(progress, "another process uses testbed %s, waiting for its end\n", n.name)
	})
	if err != nil {
		return nil, err
	}
	if before := rootOf(f); before != "" && before != n.root {
		_ = clearName(ctx, names{name: n.name, root: before}, progress)
	}
	_ = clearName(ctx, n, progress)
	if err := os.WriteFile(f.Name(), []byte(n.root), 0o600); err != nil {
		unlock()
		return nil, fmt.Errorf("own testbed %q: %w", n.name, err)
	}
	clearAbandoned(ctx, progress)
	return func() {
		_ = f.Truncate(0)
		unlock()
	}, nil
}

// disown notes that a testbed that is about to start has no owner, unless a process owns its name. It is meant to
// outlive the process that starts it.
func disown(name string) error {
	f, err := os.OpenFile(filepath.Join(ownersDir, name), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil
	}
	return f.Truncate(0)
}

func openOwner(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(ownersDir, name), os.O_CREATE|os.O_RDWR, 0o600)
}

// rootOf returns the parent of the state directory of the testbed whose owner has written f, or nothing.
func rootOf(f *os.File) string {
	text, err := os.ReadFile(f.Name())
	if root := strings.TrimSpace(string(text)); err == nil && filepath.IsAbs(root) {
		return root
	}
	return ""
}

// clearAbandoned clears the names whose owners have ended.
func clearAbandoned(ctx context.Context, progress io.Writer) {
	entries, err := os.ReadDir(ownersDir)
	if err != nil {
		fmt.Fprintf(progress, "cannot look for abandoned testbeds: %v\n", err)
	}
	for _, e := range entries {
		n, err := newNames(e.Name())
		if err != nil {
			continue
		}
		f, err := openOwner(n.name)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			if n.root = rootOf(f); n.root != "" && clearName(ctx, n, progress) == nil {
				_ = f.Truncate(0)
			}
		}
		f.Close()
	}
}

// clearName takes down what is left under the name. It prints errors as well, because its callers go on: what it cannot
// remove may not be in the way.
func clearName(ctx context.Context, n names, progress io.Writer) error {
	s, err := readState(n.stateFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(progress, "%v\n", err)
	}
	left, err := n.remains(s)
	if err == nil && len(left) == 0 {
		return nil
	}
	fmt.Fprintf(progress, "an earlier run has left testbed %s, taking it down\n", n.name)
	if err = down(ctx, n, progress); err != nil {
		fmt.Fprintf(progress, "%v (continuing)\n", err)
	}
	return err
}
