package podfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/mounts"
)

// tmpfsNoswap reports whether the kernel can keep a tmpfs out of swap (since Linux 6.4, outside user namespaces). It
// mounts nothing.
func tmpfsNoswap() bool {
	fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.FsconfigSetFlag(fd, "noswap") == nil
}

// tmpfsOptions returns the mount options of a tmpfs of at most size bytes. 0 means the kernel's limit, half of the
// memory.
func (v *FS) tmpfsOptions(size int64) string {
	var options []string
	if size > 0 {
		options = append(options, fmt.Sprintf("size=%d", size))
	}
	if v.noswap {
		options = append(options, "noswap")
	}
	return strings.Join(options, ",")
}

// memoryFS is a file system in memory, which disappears with its mount.
type memoryFS struct {
	fstype   string // "tmpfs" or "hugetlbfs"
	magic    int64  // what statfs calls it
	options  string
	pageSize int64 // of hugetlbfs; 0: any
}

// makeMounted makes the directory at path below that of the pod, mounts fs on it if it is not mounted, and opens the
// mounted directory.
func makeMounted(pod *os.File, path string, fs memoryFS) (dir *os.File, mounted bool, err error) {
	dir, err = makeDir(pod, path, privateDir)
	if err != nil {
		return nil, false, err
	}
	ready, err := fs.isOn(dir)
	if ready {
		return dir, false, nil
	}
	defer dir.Close() // it is what the mount covers
	if err != nil {
		return nil, false, err
	}
	if err := permitAll(dir); err != nil {
		return nil, false, err
	}
	if err := unix.Mount(fs.fstype, fdPath(dir), fs.fstype, 0, fs.options); err != nil {
		return nil, false, fmt.Errorf("mount %s with options %q on %s: %w", fs.fstype, fs.options, dir.Name(), err)
	}
	top, err := openDir(pod, path)
	return top, true, err
}

// isOn reports whether the open directory is the root of such a file system. It is an error if something else is
// mounted there.
func (fs memoryFS) isOn(dir *os.File) (bool, error) {
	st, err := stat(dir)
	if err != nil || !mounts.IsRoot(&st) {
		return false, err
	}
	var sfs unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &sfs); err != nil {
		return false, pathError("statfs", dir, "", err)
	}
	if int64(sfs.Type) != fs.magic || fs.pageSize != 0 && int64(sfs.Bsize) != fs.pageSize {
		return false, fmt.Errorf("unexpected mount on %s, want %s (%s): unmount it first",
			dir.Name(), fs.fstype, fs.options)
	}
	return true, nil
}

// permitAll gives everyone all permissions on a directory, whatever the umask is.
func permitAll(dir *os.File) error {
	const mode = 0o777
	st, err := stat(dir)
	if err != nil {
		return err
	}
	old := uint32(st.Mode) & 0o7777
	if old&mode == mode {
		return nil
	}
	return replaceMode(dir, old|mode)
}

func replaceMode(dir *os.File, mode uint32) error {
	if err := unix.Fchmod(int(dir.Fd()), mode); err != nil {
		return pathError("chmod", dir, "", err)
	}
	return nil
}

// unmount unmounts everything that is mounted on the entry name of dir. It is no error if nothing is mounted, or if
// there is no such entry. It does not examine the mount first: that fails if the server of the mount is gone.
func unmount(dir *os.File, name string) error {
	return mounts.UnmountAll(func() error { return unmountTop(dir, name) })
}

// unmountTop unmounts the topmost mount. A busy mount in memory is detached: there is nothing to write back, and a
// forgotten process must not keep the pod from ending. Other busy mounts stay, because their device may be detached
// next.
func unmountTop(dir *os.File, name string) error {
	target := filepath.Join(fdPath(dir), name)
	err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	if !errors.Is(err, unix.EBUSY) {
		return unmountError(dir, name, err)
	}
	inMemory, below := mountsAt(dir, name)
	if len(below) > 0 {
		return fmt.Errorf("unmount %s: busy, because of mounts below it: %s: unmount them first",
			filepath.Join(dir.Name(), name), strings.Join(below, ", "))
	}
	if !inMemory {
		return unmountError(dir, name, err)
	}
	return unmountError(dir, name, unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH))
}

// detach takes everything that is mounted on the entry name of dir out of the tree, also if it is busy or its server is
// gone. It is for a further mount of a volume that stays mounted itself.
func detach(dir *os.File, name string) error {
	target := filepath.Join(fdPath(dir), name)
	return mounts.UnmountAll(func() error {
		return unmountError(dir, name, unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH))
	})
}

func unmountError(dir *os.File, name string, err error) error {
	if err == nil {
		return nil
	}
	return pathError("unmount", dir, name, err)
}

// mountsAt reports whether the topmost mount on an entry of dir is in memory, and which mounts are below. It reads the
// whole mount table, so it is for a busy mount only, and asks no server, which may be gone.
func mountsAt(dir *os.File, name string) (inMemory bool, below []string) {
	parent, err := os.Readlink(fdPath(dir))
	if err != nil {
		return false, nil
	}
	path := filepath.Join(parent, name)
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	if err != nil {
		return false, nil
	}
	for _, m := range all {
		if m.Mountpoint != path {
			below = append(below, m.Mountpoint)
			continue
		}
		inMemory = m.FSType == "tmpfs" || m.FSType == "hugetlbfs"
	}
	return inMemory, below
}
