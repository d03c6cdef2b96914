package usage

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/beneath"
	"github.com/nodelet/nodelet/host/mounts"
)

const (
	// walkEntries and walkTime bound one walk: a larger directory is reported as large as what was seen of it.
	walkEntries = 2_000_000
	walkTime    = 30 * time.Second
	// walkDepth bounds how deep a walk goes: each level holds a file descriptor.
	walkDepth = 200
	// walkChunk is how many names of a directory are read at a time.
	walkChunk = 256
	// walkLinked bounds how many files with several names are remembered.
	walkLinked = 1 << 16
)

// Amount is what something takes of a file system.
type Amount struct{ Bytes, Inodes uint64 }

func (a *Amount) add(b Amount) {
	a.Bytes += b.Bytes
	a.Inodes += b.Inodes
}

// place is a file or a directory below one that is trusted: no link on the way below base is followed.
type place struct {
	base, below string
	// mounted: it is a mount point itself, as a volume in memory is.
	mounted bool
}

// walk sums up what a place takes on its file system, as du does. Links are counted and not followed, and a file with
// several names counts once. A mount point on the way or below is neither counted nor touched, so that neither the
// volumes of others count nor a server that does not answer holds up the walk. The walk ends at until at the latest.
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
	return w.sum, nil
}

type walker struct {
	sum         Amount
	device      [2]uint32
	until       time.Time
	left, depth int
	linked      map[uint64]bool
}

// count adds a file that is counted once for each share of its names.
func (w *walker) count(st *unix.Statx_t, shares uint32) {
	w.sum.Inodes++
	w.sum.Bytes += st.Blocks * 512 / uint64(shares)
}

// directory counts the content of a directory.
func (w *walker) directory(parent *os.File, name string) {
	if w.depth == walkDepth {
		return
	}
	dir, err := beneath.Open(parent, name, unix.O_RDONLY|unix.O_DIRECTORY, beneath.SameMount)
	if err != nil {
		return // it has gone, or something has been mounted there
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
}

// entry counts one name in a directory.
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
		w.count(st, st.Nlink) // there are too many to remember: each name counts for its part
	case st.Nlink == 1 || !w.linked[st.Ino]:
		w.count(st, 1)
		if st.Nlink > 1 {
			w.linked[st.Ino] = true
		}
	}
}

// statAt reads what the kernel knows of a name in a directory; "" is the file itself. It asks no server.
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
