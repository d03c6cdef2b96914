package machine

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestSizes checks that blocks have the fragment size, as a virtiofs of macOS reports them.
func TestSizes(t *testing.T) {
	got := sizes(&unix.Statfs_t{Bsize: 1 << 20, Frsize: 4096, Blocks: 3, Bfree: 2, Bavail: 1, Files: 5, Ffree: 4})
	if want := (FileSystem{Size: 12288, Free: 8192, Available: 4096, Inodes: 5, InodesFree: 4}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
