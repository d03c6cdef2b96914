package logs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// watcher tells readers that something in a directory has changed. All share one inotify instance, of which the kernel gives
// a user few; it is there only while somebody follows.
type watcher struct {
	mu    sync.Mutex
	file  *os.File
	fd    int                                  // of file, which Fd would make blocking
	dirs  map[int32]map[chan struct{}]struct{} // by watch descriptor
	count int
}

const changesOf = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE

// add begins to watch an open directory. A change makes the channel readable, many at once only once.
func (w *watcher) add(dir *os.File) (changes <-chan struct{}, stop func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		if err := w.start(); err != nil {
			return nil, nil, err
		}
	}
	wd, err := unix.InotifyAddWatch(w.fd, "/proc/self/fd/"+strconv.Itoa(int(dir.Fd())), changesOf)
	if err != nil {
		if w.count == 0 {
			w.end()
		}
		return nil, nil, fmt.Errorf("watch %s: %w (sysctl fs.inotify.max_user_watches bounds how many)", dir.Name(), err)
	}
	c := make(chan struct{}, 1)
	if w.dirs[int32(wd)] == nil {
		w.dirs[int32(wd)] = map[chan struct{}]struct{}{}
	}
	w.dirs[int32(wd)][c] = struct{}{}
	w.count++
	return c, sync.OnceFunc(func() { w.remove(int32(wd), c) }), nil
}

// start opens the instance. w.mu is held.
func (w *watcher) start() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch logs: %w (sysctl fs.inotify.max_user_instances bounds how many)", err)
	}
	w.fd, w.file, w.dirs = fd, os.NewFile(uintptr(fd), "inotify"), map[int32]map[chan struct{}]struct{}{}
	go w.read(w.file)
	return nil
}

// end closes the instance. w.mu is held.
func (w *watcher) end() {
	w.file.Close()
	w.file, w.dirs = nil, nil
}

func (w *watcher) remove(wd int32, c chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count--
	if delete(w.dirs[wd], c); len(w.dirs[wd]) == 0 {
		delete(w.dirs, wd)
		_, _ = unix.InotifyRmWatch(w.fd, uint32(wd)) // it fails for a directory that is gone
	}
	if w.count == 0 {
		w.end()
	}
}

// read passes events on until the instance is closed.
func (w *watcher) read(file *os.File) {
	buf := make([]byte, 16<<10)
	for {
		n, err := file.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				w.wakeAll(file) // nobody must wait for what will not come
			}
			return
		}
		w.wake(file, buf[:n])
	}
}

func (w *watcher) wake(file *os.File, events []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != file {
		return
	}
	for len(events) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(events))
		mask, size := binary.NativeEndian.Uint32(events[4:]), binary.NativeEndian.Uint32(events[12:])
		events = events[min(len(events), unix.SizeofInotifyEvent+int(size)):]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			w.nudgeAll()
			return
		}
		nudge(w.dirs[wd])
	}
}

func (w *watcher) wakeAll(file *os.File) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == file {
		w.nudgeAll()
	}
}

func (w *watcher) nudgeAll() {
	for _, readers := range w.dirs {
		nudge(readers)
	}
}

func nudge(readers map[chan struct{}]struct{}) {
	for c := range readers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
