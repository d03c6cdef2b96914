package filelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestWait checks that a lock is waited for as long as ctx allows, and that it is taken when it is released.
func TestWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	first, second := open(), open()
	if err := Wait(t.Context(), first, time.Hour); err != nil {
		t.Fatalf("a free lock: got %v, want none", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Wait(ctx, second, time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a lock that is held: got %v, want %v", err, context.DeadlineExceeded)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = first.Close() })
	if err := Wait(t.Context(), second, time.Millisecond); err != nil {
		t.Errorf("a lock that is released: got %v, want none", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Wait(t.Context(), second, time.Hour); err == nil {
		t.Error("a closed file: got no error, want one")
	}
}
