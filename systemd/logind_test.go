package systemd

import (
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
// it, and that a file of an earlier version, which logind would read later, goes.
func TestDelayFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logind.conf.d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "99-nodelet.conf"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
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
