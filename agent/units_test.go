package agent

import (
	"log/slog"
	"testing"

	"github.com/nodelet/nodelet/agent/podstate"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestHintsAreCollected checks that hints to a busy worker do not block, and that none is lost.
func TestHintsAreCollected(t *testing.T) {
	w := newWorker(Config{Log: discard()}.complete(), func() {})
	w.stale = false
	w.memory.Volumes["data"] = podstate.Volume{}
	for range 1000 {
		w.notify(hintObjects)
		w.notify(hintRuntime)
		w.notify(hintVerdict)
	}
	if len(w.wake) != 1 {
		t.Errorf("%d wake-ups wait", len(w.wake))
	}
	w.drain()
	if !w.stale || !w.memory.Volumes["data"].Stale {
		t.Errorf("a hint was lost: %v, %+v", w.stale, w.memory.Volumes)
	}
}
