package systemd

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
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

// TestDelayFile checks that the limit of logind is in the file that the kubelet writes, so that either agent can raise
// it.
func TestDelayFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logind.conf.d")
	if err := writeDelay(dir, 1500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if want := filepath.Join(dir, "99-kubelet.conf"); err != nil || len(files) != 1 || files[0] != want {
		t.Fatalf("got files %q, %v, want %s", files, err, want)
	}
	text, err := os.ReadFile(files[0])
	if err != nil || !strings.HasSuffix(string(text), "[Login]\nInhibitDelayMaxSec=2\n") {
		t.Errorf("got %q, %v, want a delay of 2 s", text, err)
	}
}

// TestDelayReusesLock checks that an agent which starts again takes over the lock that systemd has kept for it. A
// second lock would delay a shutdown until logind's limit, because nobody releases the first one.
func TestDelayReusesLock(t *testing.T) {
	lock, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	kept()[lockName] = lock
	var l Logind
	if err := l.Delay(t.Context()); err != nil || l.lock != lock {
		t.Errorf("got the lock %v, %v, want the kept one", l.lock, err)
	}
	if err := errors.Join(l.Release(), lock.Close()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after the release: got %v, want the kept lock closed", err)
	}
}
