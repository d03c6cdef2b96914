package usage

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/beneath"
	"github.com/nodelet/nodelet/host/mounts"
)

const (
	// walkEntries and walkTime limit one walk: for a larger directory the size of the visited part is reported.
	walkEntries = 2_000_000
	walkTime    = 30 * time.Second
	// walkDepth limits the depth of a walk: each level needs a file descriptor. No path that Linux accepts is as deep.
	walkDepth = 2048
	// walkChunk is the number of names of a directory that are read at a time.
	walkChunk = 256
	// walkLinked limits the number of files with several hard links that are remembered.
	walkLinked = 1 << 16
)

// errCut comes with the size of the visited part of a directory that is too large for one walk.
var errCut = errors.New("it has too many files or levels, or the disk is slow")

// Amount is an amount of space and inodes on a file system.
type Amount struct{ Bytes, Inodes uint64 }

func (a *Amount) add(b Amount) {
	a.Bytes += b.Bytes
	a.Inodes += b.Inodes
}

// place is a file or directory below the trusted directory base: no symbolic link below base is followed.
type place struct {
	base, below string
	// mounted reports whether it is a mount point itself, such as a volume in memory.
	mounted bool
}

// walk returns the usage of a place on its file system, as du does. Symbolic links are counted and not followed, and
// a file with several hard links is counted once. Mount points in the path and below are neither counted nor
// accessed, so that other volumes are not counted and a server that does not answer does not block the walk. The walk
// ends at until at the latest. With errCut there is an amount, too.
func walk(p place, until time.Time) (Amount, error) {
	base, err := os.Open(p.base)
	if err != nil {
		return Amount{}, err
	}
	defer base.Close()
	resolve := beneath.SameMount
	if p.mounted {
		resolve = beneath.NoLinks
	}
	top, err := beneath.Open(base, p.below, unix.O_PATH, resolve)
	if err != nil {
		return Amount{}, err
	}
	defer top.Close()
	st, err := statAt(int(top.Fd()), "")
	if err != nil {
		return Amount{}, err
	}
	w := walker{until: until, left: walkEntries, device: deviceOf(st), linked: map[uint64]bool{}}
	w.count(st, 1)
	if isDir(st) {
		w.directory(top, ".")
	}
	if w.cut {
		err = errCut
	}
	return w.sum, err
}

type walker struct {
	sum         Amount
	device      [2]uint32
	until       time.Time
	left, depth int
	linked      map[uint64]bool
	// cut reports that something was left out because of a limit of the walk.
	cut bool
}

// count adds one entry: the inode, and the file's blocks divided by shares.
func (w *walker) count(st *unix.Statx_t, shares uint32) {
	w.sum.Inodes++
	w.sum.Bytes += st.Blocks * 512 / uint64(shares)
}

// directory counts the content of a directory.
func (w *walker) directory(parent *os.File, name string) {
	if w.depth == walkDepth {
		w.cut = true
		return
	}
	dir, err := beneath.Open(parent, name, unix.O_RDONLY|unix.O_DIRECTORY, beneath.SameMount)
	if err != nil {
		return // it was removed, or something was mounted on it
	}
	defer dir.Close()
	w.depth++
	defer func() { w.depth-- }()
	for w.left > 0 && time.Now().Before(w.until) {
		names, err := dir.Readdirnames(walkChunk)
		for _, name := range names {
			w.entry(dir, name)
		}
		if err != nil {
			return
		}
	}
	w.cut = true
}

// entry counts one entry of a directory.
func (w *walker) entry(parent *os.File, name string) {
	if w.left == 0 {
		return
	}
	w.left--
	st, err := statAt(int(parent.Fd()), name)
	if err != nil || mounts.IsRoot(st) || deviceOf(st) != w.device {
		return
	}
	switch {
	case isDir(st):
		w.count(st, 1)
		w.directory(parent, name)
	case st.Nlink > 1 && !w.linked[st.Ino] && len(w.linked) == walkLinked:
		w.count(st, st.Nlink) // too many to remember: count a part for each name
	case st.Nlink == 1 || !w.linked[st.Ino]:
		w.count(st, 1)
		if st.Nlink > 1 {
			w.linked[st.Ino] = true
		}
	}
}

// statAt returns the attributes of an entry of a directory; "" is the directory itself. It does not wait for a file
// server.
func statAt(parent int, name string) (*unix.Statx_t, error) {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	err := unix.Statx(parent, name, flags, unix.STATX_BASIC_STATS, &st)
	return &st, err
}

func deviceOf(st *unix.Statx_t) [2]uint32 { return [2]uint32{st.Dev_major, st.Dev_minor} }

func isDir(st *unix.Statx_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }
