package usage

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sizeFresh is how long a measured size is good, as the kubelet's volumeStatsAggPeriod.
	sizeFresh = time.Minute
	// sizeKept is how long a size is kept that nobody asks for.
	sizeKept = 10 * time.Minute
	// sizeEntries bounds one walk: a directory with more files is reported as large as what was seen of it.
	sizeEntries = 2_000_000
	// sizeDepth bounds how deep a walk goes: each level holds a file descriptor.
	sizeDepth = 200
	// firstSizes is how long a request waits for directories that were never measured.
	firstSizes = 300 * time.Millisecond
)

// size is what a directory holds.
type size struct {
	bytes, inodes uint64
	at            time.Time
	asked         time.Time
	known         bool
}

// place is a directory below one that is trusted: nothing on the way below base is followed if it is a link.
type place struct{ base, below string }

// disks measure directories, one at a time, in a goroutine that lives while there is something to measure.
type disks struct {
	log *slog.Logger

	mu      sync.Mutex
	sizes   map[place]size
	queue   []place
	running bool
	// waiters are closed when the queue is empty.
	waiters []chan struct{}
}

// sizesOf gives the sizes of these directories as they are known now. Those never measured are waited for a moment, the
// old ones are measured again for whoever asks next.
func (d *disks) sizesOf(places []place) map[place]size {
	now := time.Now()
	d.mu.Lock()
	if d.sizes == nil {
		d.sizes = map[place]size{}
	}
	fresh := true
	for _, p := range places {
		s, there := d.sizes[p]
		fresh = fresh && s.known
		if !there || s.known && now.Sub(s.at) > sizeFresh {
			d.queue = append(d.queue, p)
			s.at = now // so that it is not queued twice
		}
		s.asked = now
		d.sizes[p] = s
	}
	for p, s := range d.sizes {
		if now.Sub(s.asked) > sizeKept {
			delete(d.sizes, p)
		}
	}
	if len(d.queue) > 0 && !d.running {
		d.running = true
		go d.measure()
	}
	var done chan struct{}
	if !fresh && d.running {
		done = make(chan struct{})
		d.waiters = append(d.waiters, done)
	}
	d.mu.Unlock()
	if done != nil {
		patience := time.NewTimer(firstSizes)
		defer patience.Stop()
		select {
		case <-done:
		case <-patience.C:
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[place]size, len(places))
	for _, p := range places {
		if s := d.sizes[p]; s.known {
			out[p] = s
		}
	}
	return out
}

// measure works the queue off.
func (d *disks) measure() {
	for {
		d.mu.Lock()
		if len(d.queue) == 0 {
			d.running = false
			for _, w := range d.waiters {
				close(w)
			}
			d.waiters, d.queue = nil, nil
			d.mu.Unlock()
			return
		}
		p := d.queue[0]
		d.queue = d.queue[1:]
		d.mu.Unlock()
		bytes, inodes, err := walk(p)
		if err != nil && d.log != nil {
			d.log.Debug("cannot measure a directory", "dir", filepath.Join(p.base, p.below), "err", err)
		}
		d.mu.Lock()
		if s, wanted := d.sizes[p]; wanted {
			if err == nil {
				s.bytes, s.inodes, s.known = bytes, inodes, true
			}
			s.at = time.Now()
			d.sizes[p] = s
		}
		d.mu.Unlock()
	}
}

// walk sums up what a directory takes on its file system, as du does. Links are counted and not followed, other file systems
// are left out, and a file with several names counts once.
func walk(p place) (bytes, inodes uint64, err error) {
	base, err := os.Open(p.base)
	if err != nil {
		return 0, 0, err
	}
	defer base.Close()
	fd, err := unix.Openat2(int(base.Fd()), p.below, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return 0, 0, err
	}
	w := walker{left: sizeEntries, linked: map[uint64]bool{}}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return 0, 0, err
	}
	w.device = st.Dev
	w.count(&st)
	w.dir(fd, p.below)
	return w.bytes, w.inodes, nil
}

type walker struct {
	bytes, inodes uint64
	device        uint64
	left, depth   int
	linked        map[uint64]bool
}

func (w *walker) count(st *unix.Stat_t) {
	w.inodes++
	w.bytes += uint64(st.Blocks) * 512
}

// dir counts what is in a directory, and closes it.
func (w *walker) dir(fd int, name string) {
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	for w.left > 0 {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			w.entry(fd, name)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				w.left = 0
			}
			return
		}
	}
}

func (w *walker) entry(parent int, name string) {
	var st unix.Stat_t
	if w.left--; w.left < 0 || unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Dev != w.device {
		return
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if st.Nlink > 1 && !isDir {
		if w.linked[st.Ino] {
			return
		}
		w.linked[st.Ino] = true
	}
	w.count(&st)
	if !isDir || w.depth >= sizeDepth {
		return
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		w.depth++
		w.dir(fd, name)
		w.depth--
	}
}
