// Package inotify tells that something in a directory has changed.
//
// It owns the kernel's inotify instance of each watcher and the goroutine that reads it, whose buffer is small: there are few
// changes, and who reads them in large pieces keeps as much memory for ever. It never decides what a change means: a path is a
// hint, and its reader looks for itself. The rooms that live by files on the disk call it. A crash leaves nothing behind.
package inotify

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// changesOf is what a change is: content and names, not who may read them.
	changesOf = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	// bufferSize has room for some events; one takes 272 bytes at most.
	bufferSize = 4 << 10
)

// Watcher tells of changes at the paths that were added.
type Watcher struct {
	file    *os.File
	fd      int // of file, which Fd would make blocking
	changes chan string
	done    chan struct{}
	close   func()

	mu    sync.Mutex
	paths map[int32]string // by watch descriptor
}

// New makes a watcher that watches nothing yet.
func New() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch for changes: %w (sysctl fs.inotify.max_user_instances bounds how many)", err)
	}
	w := &Watcher{fd: fd, file: os.NewFile(uintptr(fd), "inotify"), changes: make(chan string), done: make(chan struct{}),
		paths: map[int32]string{}}
	w.close = sync.OnceFunc(func() {
		close(w.done)
		w.file.Close()
	})
	go w.read()
	return w, nil
}

// Add watches a file, or a directory and what is right in it. It does nothing for what is watched already. What was removed or
// moved is watched no longer, and can be added again when it is back.
func (w *Watcher) Add(path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	wd, err := unix.InotifyAddWatch(w.fd, path, changesOf)
	if err != nil {
		return &os.PathError{Op: "watch", Path: path, Err: err}
	}
	w.paths[int32(wd)] = filepath.Clean(path)
	return nil
}

// Changes gives the path of what has changed, empty where changes were lost: then anything may have. It is never closed.
func (w *Watcher) Changes() <-chan string { return w.changes }

// Close ends the watching.
func (w *Watcher) Close() { w.close() }

func (w *Watcher) read() {
	buf := make([]byte, bufferSize)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			w.tell("") // unless it was closed, nothing will be seen any more: a last look
			return
		}
		for events := buf[:n]; len(events) >= unix.SizeofInotifyEvent; {
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
			if path, known := w.path(events[:end]); known && !w.tell(path) {
				return
			}
			events = events[end:]
		}
	}
}

// tell hands a path on, unless the watcher is closed.
func (w *Watcher) tell(path string) bool {
	select {
	case w.changes <- path:
		return true
	case <-w.done:
		return false
	}
}

// path is what an event is about; false where that concerns nobody. It forgets what is gone.
func (w *Watcher) path(event []byte) (string, bool) {
	wd, mask := int32(binary.NativeEndian.Uint32(event)), binary.NativeEndian.Uint32(event[4:])
	if mask&unix.IN_Q_OVERFLOW != 0 {
		return "", true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	dir, known := w.paths[wd]
	switch {
	case !known:
		return "", false
	case mask&unix.IN_IGNORED != 0: // the kernel watches it no longer, which was told of before
		delete(w.paths, wd)
		return "", false
	case mask&unix.IN_MOVE_SELF != 0: // what happens there is no change at this path any more
		delete(w.paths, wd)
		_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
	}
	return filepath.Join(dir, strings.TrimRight(string(event[unix.SizeofInotifyEvent:]), "\x00")), true
}
