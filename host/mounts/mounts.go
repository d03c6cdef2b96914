// Package mounts reports where something is mounted, removes mounts on top of each other, and holds the devices of
// block volumes.
//
// It never mounts a file system. The packages that mount volumes call it. A crash leaves the mount of a device behind,
// or the loop device that holds it: Release removes both. Linux 5.8 is needed.
package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// On reports whether something is mounted on the entry name of a directory. An entry that cannot be examined, such as a
// mount whose server or daemon is gone, counts as mounted; a missing entry does not.
func On(dir *os.File, name string) bool { return mounted(int(dir.Fd()), name) }

// At reports whether something is mounted on a path, as On does. It needs no file descriptor: the process may have used
// all that it can have.
func At(path string) bool { return mounted(unix.AT_FDCWD, filepath.Clean(path)) }

// asIs are the flags of statx to examine what is on a path: no link is followed, nothing is mounted automatically, and
// no server is asked.
const asIs = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC

func mounted(dir int, path string) bool {
	var st unix.Statx_t
	if err := unix.Statx(dir, path, asIs, unix.STATX_TYPE, &st); err != nil {
		return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR)
	}
	return IsRoot(&st)
}

// IsRoot reports whether a file is the root of a mount.
func IsRoot(st *unix.Statx_t) bool { return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 }

// maxStacked bounds the mounts on top of each other that UnmountAll removes.
const maxStacked = 32

// UnmountAll calls unmount, which unmounts the topmost mount at a path, until nothing is mounted there. It is no error
// if nothing is, or if there is no such path.
func UnmountAll(unmount func() error) error {
	for range maxStacked {
		err := unmount()
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil // not a mount point
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("more than %d mounts on top of each other", maxStacked)
}

// Unmount unmounts everything that is mounted on a path.
func Unmount(path string) error {
	if err := UnmountAll(func() error { return unix.Unmount(path, unix.UMOUNT_NOFOLLOW) }); err != nil {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}
