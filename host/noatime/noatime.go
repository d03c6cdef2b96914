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
func ReadDir(open func(flags int) (*os.File, error)) (all []os.DirEntry, err error) {
	err = read(open, func(dir *os.File) (err error) { all, err = dir.ReadDir(-1); return err })
	return all, err
}

// Names is ReadDir for names alone. In a directory of an os.Root it saves an lstat for each entry.
func Names(open func(flags int) (*os.File, error)) (all []string, err error) {
	err = read(open, func(dir *os.File) (err error) { all, err = dir.Readdirnames(-1); return err })
	return all, err
}

func read(open func(flags int) (*os.File, error), do func(*os.File) error) error {
	dir, err := open(os.O_RDONLY | unix.O_NOATIME)
	if errors.Is(err, unix.EPERM) {
		dir, err = open(os.O_RDONLY)
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return do(dir)
}
