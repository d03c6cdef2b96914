package self

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLockFails checks that an error of the lock is reported as it is, and not as another agent.
func TestLockFails(t *testing.T) {
	root := t.TempDir()
	f, err := os.Create(filepath.Join(root, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil { // flock then fails with EBADF
		t.Fatal(err)
	}
	if err := lock(t.Context(), f, root); !errors.Is(err, unix.EBADF) || strings.Contains(err.Error(), "agent") {
		t.Errorf("a file without locks: got %v, want %v", err, unix.EBADF)
	}
	unlock, err := LockRoot(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := LockRoot(ctx, root); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "agent") {
		t.Errorf("the process has to end: got %v, want %v", err, context.Canceled)
	}
}
