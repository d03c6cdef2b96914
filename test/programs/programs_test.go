package programs

import (
	"os"
	"path/filepath"
	"testing"
)

// ending notes how a test ends.
type ending struct {
	testing.TB
	skipped, failed bool
}

func (e *ending) Helper()               {}
func (e *ending) Skipf(string, ...any)  { e.skipped = true }
func (e *ending) Fatalf(string, ...any) { e.failed = true }

// TestFind looks for a program that is nowhere, for one of Prometheus, and for one in PATH.
func TestFind(t *testing.T) {
	cache, path := t.TempDir(), t.TempDir()
	t.Setenv("NODELET_TESTBED_CACHE", cache)
	t.Setenv("PATH", path)
	for _, place := range []struct {
		dir, require    string
		skipped, failed bool
	}{
		{"", "", true, false},
		{"", "1", false, true},
		{filepath.Join(cache, "debian-prometheus/usr/bin"), "1", false, false},
		{path, "", false, false},
	} {
		want := ""
		if place.dir != "" {
			want = filepath.Join(place.dir, "tool")
			if err := os.MkdirAll(place.dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(want, nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv(Require, place.require)
		e := &ending{TB: t}
		if got := Find(e, "tool"); got != want || e.skipped != place.skipped || e.failed != place.failed {
			t.Errorf("tool in %q, %s=%q: got %q, skipped=%v, failed=%v", place.dir, Require, place.require, got,
				e.skipped, e.failed)
		}
	}
}
