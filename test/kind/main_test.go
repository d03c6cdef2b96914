package main

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/testbed"
)

// TestOneRunAtATime checks that a run waits for another one before it removes anything, and that a signal ends that. A
// run that did not wait would find no programs, and remove nothing of this machine's.
func TestOneRunAtATime(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv(testbed.CacheEnv, t.TempDir())
	o := options{lock: filepath.Join(t.TempDir(), "lock"), down: true}
	unlock, err := testbed.LockFile(t.Context(), o.lock, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := test(ctx, o); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), o.lock) {
		t.Errorf("a second run that is interrupted: got %v, want %v of the lock %s", err, context.Canceled, o.lock)
	}
}
