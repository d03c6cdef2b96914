package systemd

import (
	"math"
	"testing"
	"time"
)

// TestMicroseconds checks that a delay without a limit (InhibitDelayMaxSec=infinity) is longer than any other, so that
// AllowDelay does not lower it.
func TestMicroseconds(t *testing.T) {
	for n, want := range map[uint64]time.Duration{0: 0, 5e6: 5 * time.Second} {
		if got := microseconds(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
	if got := microseconds(math.MaxUint64); got < 100*365*24*time.Hour {
		t.Errorf("infinity: got %s, want more than any shutdown takes", got)
	}
}
