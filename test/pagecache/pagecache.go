// Package pagecache tells a test what of a file is in memory alone, and would be lost in a power failure.
//
// It sees the content of files. The kernel does not tell whether the entry of a directory is on disk, for which the
// directory is synced. Tests call it. It has no state.
package pagecache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Need makes temporary directories of the test ones in which Unwritten works. Call it before there are any. The kernel
// does not count the pages of a tmpfs or an overlay, so a directory of the user stands in for such a /tmp. Without any,
// as in most containers, the test skips.
func Need(t testing.TB) {
	t.Helper()
	parent := os.TempDir()
	err := counts(parent)
	if err != nil {
		var failed error
		if parent, failed = os.UserCacheDir(); failed == nil {
			failed = errors.Join(os.MkdirAll(parent, 0o700), counts(parent))
		}
		err = failed
	}
	if err != nil {
		t.Skipf("needs Linux 6.5, and a disk file system for temporary files: %v", err)
	}
	t.Setenv("GOTMPDIR", parent) // of t.TempDir
	t.Setenv("TMPDIR", parent)
}

// counts returns an error if the pages of a new file in a directory do not count as unwritten, though nobody has synced
// it.
func counts(parent string) error {
	dir, err := os.MkdirTemp(parent, "pagecache")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for i := range 100 { // the kernel may write one of them at any time
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, []byte("new"), 0o600); err != nil {
			return err
		}
		if n, err := unwritten(path); n > 0 || err != nil {
			return err
		}
	}
	return fmt.Errorf("%s is on a file system whose pages the kernel does not count", dir)
}

// Unwritten returns how many pages of a file are not on disk yet.
func Unwritten(t testing.TB, path string) uint64 {
	t.Helper()
	n, err := unwritten(path)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func unwritten(path string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var s unix.Cachestat_t
	if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &s, 0); err != nil {
		return 0, fmt.Errorf("cachestat: %w", err)
	}
	return s.Dirty + s.Writeback, nil
}
