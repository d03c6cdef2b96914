package podfs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func removeIn(t *testing.T, dir, name string) error {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return removeTree(t.Context(), f, name)
}

func TestRemoveTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	for _, d := range []string{outside, filepath.Join(dir, "tree/a/b/c"), filepath.Join(dir, "tree/empty")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{filepath.Join(outside, "keep"), filepath.Join(dir, "tree/a/b/c/f")} {
		if err := os.WriteFile(f, nil, 0o400); err != nil {
			t.Fatal(err)
		}
	}
	for i := range readBatch + 1 {
		if err := os.WriteFile(filepath.Join(dir, "tree/a", strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(dir, "tree/a/link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "tree/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := removeIn(t, dir, "tree"); err != nil {
		t.Fatal(err)
	}
	if err := removeIn(t, dir, "tree"); err != nil {
		t.Errorf("removal of what is gone: got %v, want no error", err)
	}
	wantFiles(t, dir, map[string]string{"outside/keep": ""})
}

// TestRemoveDeepTree checks that a tree deeper than any path is long, as a container can nest it, is removed with
// only a few open descriptors.
func TestRemoveDeepTree(t *testing.T) {
	dir := t.TempDir()
	const depth = 3_000
	at, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(at.Fd())
	for range depth {
		if err := unix.Mkdirat(fd, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if fd != int(at.Fd()) {
			unix.Close(fd)
		}
		fd = next
	}
	unix.Close(fd)
	at.Close()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: depth / 4, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	err = removeIn(t, dir, "d")
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "d")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want it removed", err)
	}
}

func TestRemoveStopsAtMounts(t *testing.T) {
	t.Parallel()
	v := newVolumes(t) // for the clean-up
	root := filepath.Dir(v.podsDir)
	host := filepath.Join(root, "host")
	for _, d := range []string{host, filepath.Join(root, "tree/x/mnt"), filepath.Join(root, "tree/other")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{filepath.Join(host, "precious"), filepath.Join(root, "tree/x/file"),
		filepath.Join(root, "tree/f")} {
		if err := os.WriteFile(f, []byte("data"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bindMount(t, host, filepath.Join(root, "tree/x/mnt"))
	bindMount(t, filepath.Join(host, "precious"), filepath.Join(root, "tree/x/file"))
	for range 2 {
		err := removeIn(t, root, "tree")
		if !errors.Is(err, errMounted) || !strings.Contains(err.Error(), "tree/x/") {
			t.Errorf("got %v, want an error naming the mount", err)
		}
	}
	wantFiles(t, root, map[string]string{"host/precious": "data", "tree/x/file": "data", "tree/x/mnt/precious": "data"})
	for _, m := range []string{"tree/x/mnt", "tree/x/file"} {
		if err := unix.Unmount(filepath.Join(root, m), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeIn(t, root, "tree"); err != nil {
		t.Error(err)
	}
	wantFiles(t, root, map[string]string{"host/precious": "data"})
}

// TestRemoveUnderSwap checks that while names are exchanged between a directory and a link out, nothing outside is
// touched.
func TestRemoveUnderSwap(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	host := filepath.Join(root, "host")
	if err := os.MkdirAll(filepath.Join(host, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(host, "sub", "precious"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		tree := filepath.Join(root, "tree")
		for i := range 10 {
			if err := os.MkdirAll(filepath.Join(tree, "dir", "sub", strconv.Itoa(i)), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(host, filepath.Join(tree, "link")); err != nil {
			t.Fatal(err)
		}
		stop := swap(filepath.Join(tree, "dir"), filepath.Join(tree, "link"))
		err := removeIn(t, root, "tree")
		stop()
		if err != nil {
			t.Fatal(err)
		}
	}
	wantFiles(t, host, map[string]string{"sub/precious": "data"})
}

// swap exchanges two names as fast as it can until it is stopped.
func swap(a, b string) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
			}
		}
	}()
	return func() { close(done); <-ended }
}

func TestRemoveIsCancelled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "tree/x"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := removeTree(ctx, f, "tree"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
