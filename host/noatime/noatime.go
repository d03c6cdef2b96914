// Package noatime reads directories and leaves their access times alone.
//
// It owns nothing. Packages that look through directories of pods every minute call it: each look after a change would
// otherwise be a write to the disk, by an agent at rest. A crash leaves nothing behind.
package noatime

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ReadDir returns the entries of the directory that open opens with the given flags, in no order. The access time
// changes if the directory belongs to another user.
func ReadDir(open func(flags int) (*os.File, error)) ([]os.DirEntry, error) {
	dir, err := open(os.O_RDONLY | unix.O_NOATIME)
	if errors.Is(err, unix.EPERM) {
		dir, err = open(os.O_RDONLY)
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.ReadDir(-1)
}
