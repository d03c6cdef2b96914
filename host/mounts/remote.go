package mounts

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// errLocal is the error for a file system that is not known to be remote.
var errLocal = errors.New("is not a remote file system")

// Remote opens the remote file system that is mounted on a path: that of a server, or of a daemon (FUSE). It does so by
// a mount of its own, which is in no directory: while a call to the file system does not end, the path can be
// unmounted. For others there is an error: a disk must not be in use any more when it has been unmounted, because
// it may be detached then.
func Remote(path string) (*os.File, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, asIs, unix.STATX_TYPE, &st); err != nil {
		return nil, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	if st.Dev_major != 0 || !IsRoot(&st) { // with a major number it is on a device
		return nil, errLocal
	}
	if m, err := Of(path); err != nil || !isRemote(m.FSType) {
		return nil, errLocal
	}
	flags := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, uint(flags))
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Ask waits until the file system of an open file answers, and returns its error. It asks the file system itself, not
// the kernel's cache of it.
func Ask(f *os.File) error {
	var st unix.Statx_t
	return unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_MODE, &st)
}

// isRemote reports whether file systems of a type have no disk on this node.
func isRemote(fstype string) bool {
	switch fstype {
	case "nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "virtiofs", "fuse":
		return true
	}
	return strings.HasPrefix(fstype, "fuse.")
}
