package noatime

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// accessed returns the access time of a file.
func accessed(t *testing.T, path string) time.Time {
	t.Helper()
	var info unix.Stat_t
	if err := unix.Stat(path, &info); err != nil {
		t.Fatal(err)
	}
	return time.Unix(info.Atim.Unix())
}

func TestReadDir(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-48 * time.Hour).Truncate(time.Second)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "a"), 0o700), os.Chtimes(dir, old, time.Now())); err != nil {
		t.Fatal(err)
	}
	entries, err := ReadDir(func(flags int) (*os.File, error) { return os.OpenFile(dir, flags, 0) })
	if err != nil || len(entries) != 1 || entries[0].Name() != "a" || !entries[0].IsDir() {
		t.Errorf("got %v, %v; want the directory a", entries, err)
	}
	names, err := Names(func(flags int) (*os.File, error) { return os.OpenFile(dir, flags, 0) })
	if err != nil || !slices.Equal(names, []string{"a"}) {
		t.Errorf("got the names %q, %v; want a", names, err)
	}
	if got := accessed(t, dir); !got.Equal(old) {
		t.Errorf("access time: got %v, want %v as before", got, old)
	}
	if _, err := os.ReadDir(dir); err != nil {
		t.Fatal(err)
	}
	if accessed(t, dir).Equal(old) {
		t.Skip("this file system keeps no access times")
	}
}

func TestReadDirOfAnotherUser(t *testing.T) {
	dir := t.TempDir()
	entries, err := ReadDir(func(flags int) (*os.File, error) {
		if flags&unix.O_NOATIME != 0 {
			return nil, &os.PathError{Op: "open", Path: dir, Err: unix.EPERM}
		}
		return os.OpenFile(dir, flags, 0)
	})
	if err != nil || len(entries) != 0 {
		t.Errorf("got %v, %v; want no entries", entries, err)
	}
	missing := func(flags int) (*os.File, error) { return os.OpenFile(filepath.Join(dir, "missing"), flags, 0) }
	if _, err := ReadDir(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing directory: got %v, want %v", err, os.ErrNotExist)
	}
}
