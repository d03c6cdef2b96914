package iscsi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodelet/nodelet/test/ownmounts"
	"github.com/nodelet/nodelet/test/waittest"
)

// TestKernelEvents checks that the kernel reports a device; a wait ends with its context, and the next one works.
func TestKernelEvents(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a device is made")
	}
	events, err := kernelEvents()
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := events.Next(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: got %v, want context.Canceled", err)
	}
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	ownmounts.Loop(t, image)
	if err := events.Next(waittest.Context(t)); err != nil {
		t.Errorf("event of a new device: got %v, want no error", err)
	}
	if err := events.Close(); err != nil {
		t.Error(err)
	}
}

// script gives devices' events in turn.
type script struct {
	next func() error
}

func (s script) Next(context.Context) error { return s.next() }
func (script) Close() error                 { return nil }

// TestAwait checks that a change without an event is seen; an error of the events is returned; a wait ends with its
// context.
func TestAwait(t *testing.T) {
	t.Parallel()
	looks := 0
	after := func(n int) func() string {
		return func() string {
			if looks++; looks > n {
				return "found"
			}
			return ""
		}
	}
	if got, err := await(t.Context(), script{func() error { return nil }}, time.Minute, after(3)); got != "found" ||
		err != nil {
		t.Errorf("got %q, %v, want found", got, err)
	}
	broken := errors.New("broken")
	looks = 0
	if _, err := await(t.Context(), script{func() error { return broken }}, time.Minute, after(3)); !errors.Is(err,
		broken) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	looks = 0
	if got, err := await(ctx, script{func() error { cancel(); return ctx.Err() }}, time.Minute, after(3)); got != "" ||
		!errors.Is(err, context.Canceled) {
		t.Errorf("given up: got %q, %v, want context.Canceled", got, err)
	}
	looks = 0
	if got, err := await(t.Context(), script{func() error { return nil }}, 0, after(3)); got != "" || err != nil {
		t.Errorf("with a timeout of zero: got %q, %v, want none", got, err)
	}
}
