package keylock

import (
	"context"
	"errors"
	"testing"
)

// TestKeyed checks that who waits for a name gets it when it is free, or gives up with its context; others do not
// wait; nothing is kept in the end.
func TestKeyed(t *testing.T) {
	t.Parallel()
	var k Keyed
	free, err := k.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := k.Lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.Lock(ended, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("lock that is held: got %v, want context.Canceled", err)
	}
	got := make(chan func())
	go func() {
		unlock, err := k.Lock(t.Context(), "a")
		if err != nil {
			t.Error(err)
		}
		got <- unlock
	}()
	free()
	(<-got)()
	other()
	if len(k.held) != 0 {
		t.Errorf("got %d locks kept, want 0", len(k.held))
	}
}
