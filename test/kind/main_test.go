package main

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/nodelet/nodelet/test/testbed"
)

// TestOneRunAtATime checks that a run waits for another one before it removes anything, and that a signal ends that.
func TestOneRunAtATime(t *testing.T) {
	o := options{lock: filepath.Join(t.TempDir(), "lock"), down: true}
	unlock, err := testbed.LockFile(t.Context(), o.lock, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := test(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("a second run that is interrupted: got %v, want %v", err, context.Canceled)
	}
}
