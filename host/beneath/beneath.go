// Package beneath opens and moves files below a directory that pods can write to, so that no symbolic link and no ".."
// in a path leads out of it.
//
// It owns nothing. The packages that read and write below pod and log directories call it. A crash leaves nothing
// behind but a file that Create has made. Linux 5.6 is needed.
package beneath

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Resolve says what a path may pass on its way. It never leads out of the directory, nor through magic links.
type Resolve uint64

const (
	// NoLinks passes directories only, including mount points.
	NoLinks Resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	// LinksInside passes symbolic links too, as long as each step stays below the directory.
	LinksInside Resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS
	// LinksInRoot takes the directory for the root of absolute links, and of ".." that would lead out, as in a container.
	LinksInRoot Resolve = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	// SameMount passes neither links nor mount points.
	SameMount = NoLinks | unix.RESOLVE_NO_XDEV
)

// maxRaces bounds how often a lookup is repeated that the kernel gave up because of a rename or mount at the same
// moment.
const maxRaces = 256

// Open opens path below dir; flags are those of open(2). The error is an *os.PathError: ELOOP for a link that is not
// allowed, EXDEV for a path that leads out or to another mount.
func Open(dir *os.File, path string, flags int, resolve Resolve) (*os.File, error) {
	return Create(dir, path, flags, 0, resolve)
}

// Create is Open with O_CREAT among the flags, and the permissions of a new file.
func Create(dir *os.File, path string, flags int, mode uint32, resolve Resolve) (*os.File, error) {
	fd, err := open(dir, path, flags, mode, resolve)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(dir.Name(), path)), nil
}

// ErrNotRegular is the cause of an error of OpenRegular about a file of another type.
var ErrNotRegular = errors.New("not a regular file")

// OpenRegular opens the regular file at path below dir for reading. It opens nothing else, where a container can put
// anything: the open of a device may start a watchdog or rewind a tape, and that of a named pipe waits.
func OpenRegular(dir *os.File, path string, resolve Resolve) (*os.File, error) {
	name := filepath.Join(dir.Name(), path)
	found, err := open(dir, path, unix.O_PATH, 0, resolve)
	if err != nil {
		return nil, err
	}
	defer unix.Close(found)
	var info unix.Stat_t
	if err := unix.Fstat(found, &info); err != nil {
		return nil, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	if info.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &os.PathError{Op: "open", Path: name, Err: ErrNotRegular}
	}
	for {
		fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(found), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, &os.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// Stat returns what fstat(2) says of the file at path below dir. It costs less than Open and File.Stat.
func Stat(dir *os.File, path string, resolve Resolve) (info unix.Stat_t, err error) {
	fd, err := open(dir, path, unix.O_PATH, 0, resolve)
	if err != nil {
		return info, err
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &info); err != nil {
		return info, &os.PathError{Op: "stat", Path: filepath.Join(dir.Name(), path), Err: err}
	}
	return info, nil
}

// Move renames the entry name of dir to newName in newDir. The error is EEXIST if there is such an entry.
func Move(dir *os.File, name string, newDir *os.File, newName string) error {
	return move(dir, name, newDir, newName, unix.Renameat2)
}

func move(dir *os.File, name string, newDir *os.File, newName string,
	rename func(int, string, int, string, uint) error) error {
	from, to := int(dir.Fd()), int(newDir.Fd())
	err := rename(from, name, to, newName, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	// This file system cannot do it in one step: NFS, or ZFS before OpenZFS 2.2.
	var info unix.Stat_t
	err = unix.Fstatat(to, newName, &info, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil:
		return unix.EEXIST
	case errors.Is(err, unix.ENOENT):
		return rename(from, name, to, newName, 0)
	}
	return err
}

// open returns a descriptor of path below dir.
func open(dir *os.File, path string, flags int, mode uint32, resolve Resolve) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Mode: uint64(mode), Resolve: uint64(resolve)}
	for race := 0; ; race++ {
		fd, err := unix.Openat2(int(dir.Fd()), path, &how)
		if err == nil {
			return fd, nil
		}
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) && race < maxRaces {
			continue
		}
		return -1, &os.PathError{Op: "open", Path: filepath.Join(dir.Name(), path), Err: err}
	}
}
