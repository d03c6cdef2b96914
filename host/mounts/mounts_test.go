package mounts

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/ownmounts"
)

func TestMain(m *testing.M) { ownmounts.Main(m) }

// TestAt checks what counts as mounted, also if the process can have no other file descriptor.
func TestAt(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	dir := t.TempDir()
	for _, name := range []string{"mounted", "plain"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("tmpfs", filepath.Join(dir, "mounted"), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(filepath.Join(dir, "mounted"), unix.MNT_DETACH)
	if err := os.Symlink("mounted", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check := func() {
		for name, want := range map[string]bool{
			"mounted": true, "plain": false, "link": false, "missing": false, "missing/below": false, "file/below": false,
		} {
			if got := At(filepath.Join(dir, name)); got != want {
				t.Errorf("%s: got %t, want %t", name, got, want)
			}
		}
	}
	check()
	var usual unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &usual); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: usual.Max}); err != nil {
		t.Fatal(err)
	}
	check()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &usual); err != nil {
		t.Fatal(err)
	}
}

// TestUnmountAll checks that unmount is called until nothing is mounted, not for ever, and not after an error.
func TestUnmountAll(t *testing.T) {
	for name, test := range map[string]struct {
		stacked int
		then    error
		calls   int
		fails   bool
	}{
		"nothing mounted": {0, unix.EINVAL, 1, false},
		"no path":         {0, unix.ENOENT, 1, false},
		"two mounts":      {2, unix.EINVAL, 3, false},
		"busy":            {1, unix.EBUSY, 2, true},
		"too many":        {1000, unix.EINVAL, maxStacked, true},
	} {
		calls := 0
		err := UnmountAll(func() error {
			if calls++; calls <= test.stacked {
				return nil
			}
			return test.then
		})
		if calls != test.calls || (err != nil) != test.fails {
			t.Errorf("%s: got %d calls, %v, want %d and an error=%v", name, calls, err, test.calls, test.fails)
		}
	}
}
