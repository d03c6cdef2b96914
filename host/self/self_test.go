package self

import (
	"os"
	"path/filepath"
	"testing"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLimitBelow(t *testing.T) {
	for name, c := range map[string]struct {
		files      map[string]string
		root, path string
		want       int64
	}{
		"no files": {root: "/", path: "/system.slice/nodelet.service"},
		"no limit": {
			files: map[string]string{"a/memory.max": "max\n", "a/memory.high": "max\n"},
			root:  "/",
			path:  "/a",
		},
		"high before max": {
			files: map[string]string{"a/memory.max": "2000\n", "a/memory.high": "1000\n"},
			root:  "/",
			path:  "/a",
			want:  1000,
		},
		"smaller above": {
			files: map[string]string{"a/memory.max": "500\n", "a/b/c/memory.max": "1000\n"},
			root:  "/",
			path:  "/a/b/c",
			want:  500,
		},
		"at the mount": {
			files: map[string]string{"memory.max": "700\n"},
			root:  "/kubepods/pod1",
			path:  "/kubepods/pod1",
			want:  700,
		},
		"below a mounted cgroup": {
			files: map[string]string{"init/memory.max": "300\n"},
			root:  "/docker/x",
			path:  "/docker/x/init",
			want:  300,
		},
		"outside of the mount": {
			files: map[string]string{"memory.max": "900\n", "other/memory.max": "1\n"},
			root:  "/docker/x",
			path:  "/other",
			want:  900,
		},
		"v1": {
			files: map[string]string{"a/memory.limit_in_bytes": "4096\n", "memory.limit_in_bytes": "9223372036854771712\n"},
			root:  "/",
			path:  "/a",
			want:  4096,
		},
	} {
		mount := t.TempDir()
		for file, text := range c.files {
			write(t, filepath.Join(mount, file), text)
		}
		if got, err := limitBelow(mount, c.root, c.path); err != nil || got != c.want {
			t.Errorf("%s: got %d, %v; want %d", name, got, err, c.want)
		}
	}
}

func TestLimitThatCannotBeRead(t *testing.T) {
	mount := t.TempDir()
	write(t, filepath.Join(mount, "memory.max"), "much\n")
	if got, err := limitBelow(mount, "/", "/"); err == nil {
		t.Errorf("got %d, want an error", got)
	}
}

// TestMemoryLimit reads the real cgroup of the test.
func TestMemoryLimit(t *testing.T) {
	if limit, err := memoryLimit(); err != nil || limit < 0 {
		t.Errorf("got %d, %v; want a limit or 0", limit, err)
	}
}

func TestSetOOMScoreAdj(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "oom_score_adj"), "0\n")
	if err := setOOMScoreAdj(file, -999); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "-999" {
		t.Errorf("got %q, %v; want -999", got, err)
	}
	// Raising its own score is allowed to every process.
	if err := setOOMScoreAdj(ownScore, 1000); err != nil {
		t.Errorf("raising the score: got %v, want no error", err)
	}
	if err := setOOMScoreAdj(ownScore, 1000); err != nil {
		t.Errorf("setting the score that it has: got %v, want no error", err)
	}
}
