package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ownersDir has a file for each name that a process has owned. Its owner has locked it, and its lines are the parents
// of the testbed's state directory and of those that could not be cleared. Without an owner it is empty, unless the
// owner was killed, or there is something that is not cleared yet. The directory is the same for all processes,
// whatever StateEnv is.
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
	others := slices.DeleteFunc(rootsOf(f), func(root string) bool { return root == n.root })
	others = clearRoots(ctx, n.name, others, progress)
	stuck := append(clearRoots(ctx, n.name, []string{n.root}, progress), others...)
	if err := writeRoots(f, append(others, n.root)); err != nil {
		unlock()
		return nil, fmt.Errorf("own testbed %q: %w", n.name, err)
	}
	clearAbandoned(ctx, progress)
	return func() {
		// The owner may leave its own testbed for inspection, but what was in its way stays on record.
		_ = writeRoots(f, slices.DeleteFunc(stuck, func(root string) bool { return gone(names{n.name, root}) }))
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

// rootsOf returns the parents of state directories that an owner has written to f.
func rootsOf(f *os.File) []string {
	text, _ := os.ReadFile(f.Name())
	return slices.DeleteFunc(strings.Split(string(text), "\n"), func(root string) bool { return !filepath.IsAbs(root) })
}

func writeRoots(f *os.File, roots []string) error {
	return os.WriteFile(f.Name(), []byte(strings.Join(roots, "\n")), 0o600)
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
			roots := rootsOf(f)
			if stuck := clearRoots(ctx, n.name, roots, progress); len(stuck) < len(roots) {
				_ = writeRoots(f, stuck)
			}
		}
		f.Close()
	}
}

// clearRoots takes down what is left under the name in each of the roots, and returns those where it failed. It prints
// errors, because its callers go on: what it cannot remove may not be in the way.
func clearRoots(ctx context.Context, name string, roots []string, progress io.Writer) (stuck []string) {
	for _, root := range roots {
		n := names{name: name, root: root}
		if gone(n) {
			continue
		}
		fmt.Fprintf(progress, "an earlier run has left testbed %s, taking it down\n", name)
		if err := down(ctx, n, progress); err != nil {
			fmt.Fprintf(progress, "%v (continuing)\n", err)
			stuck = append(stuck, root)
		}
	}
	return stuck
}

// gone reports whether nothing is left under the name. What cannot be read counts as left.
func gone(n names) bool {
	s, _ := readState(n.stateFile()) // with an unreadable one, the state directory is left
	left, err := n.remains(s)
	return err == nil && len(left) == 0
}
