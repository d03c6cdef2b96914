package testbed

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestMirrorOfDebian checks that a mirror can be made where no program of the nodes is built, and that it has what they
// run of Debian's packages: the runtime with its shim, and all plugins.
func TestMirrorOfDebian(t *testing.T) {
	packages := map[string][]string{
		"debian-containerd/usr/bin":                      {"containerd", "containerd-shim-runc-v2", "ctr"},
		"debian-runc/usr/sbin":                           {"runc"},
		"debian-containernetworking-plugins/usr/lib/cni": {"bridge", "host-local", "portmap"},
	}
	t.Setenv(CacheEnv, t.TempDir())
	t.Setenv(BinariesEnv, "")
	for dir, names := range packages {
		dir = filepath.Join(os.Getenv(CacheEnv), dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	find := func() *Testbed {
		tb, err := newTestbed(Options{Shape: LeanShape, Progress: io.Discard})
		if err != nil {
			t.Fatal(err)
		}
		if err := findNodePrograms(t.Context(), tb); err != nil {
			t.Fatal(err)
		}
		return tb
	}
	mirror := t.TempDir()
	sum, err := find().cache.copyUsed(mirror)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(CacheEnv, t.TempDir())
	t.Setenv(BinariesEnv, mirror)
	t.Setenv(BinariesSumEnv, sum)
	tb := find()
	for dir, names := range packages {
		var got []string
		all, err := os.ReadDir(filepath.Join(tb.cache.dir, dir))
		for _, e := range all {
			got = append(got, e.Name())
		}
		if err != nil || !slices.Equal(got, names) {
			t.Errorf("%s: got %q, %v, want %q", dir, got, err, names)
		}
	}
}
