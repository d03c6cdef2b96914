// Package inotify reports changes in directories and files.
//
// It owns the kernel's inotify instances and one goroutine per instance that reads it. The read buffer is small,
// because there are few changes and the buffer is kept for the whole lifetime of the instance. The package never
// decides what a change means: a change is a hint, and the reader must look at the file itself. Packages that watch
// files call it: by path (Follow, Watcher), or by watch descriptor (Instance) where paths cannot be trusted or several
// readers share an instance. A crash leaves nothing behind.
package inotify

import (
	"path/filepath"
	"sync"
)

// Change is a change of a path.
type Change struct {
	// Path is the changed path. If it is empty, changes were lost: any path may have changed.
	Path string
	// Removed reports that a file was removed from a watched directory, not moved to another name. Another file may have
	// its path by now.
	Removed bool
}

// Watcher reports changes of the paths that were added.
type Watcher struct {
	instance *Instance
	changes  chan Change
	done     chan struct{}
	close    func()

	mu    sync.Mutex
	paths map[int32]string // by watch descriptor
}

// New returns a watcher without watches.
func New() (*Watcher, error) {
	w := &Watcher{changes: make(chan Change), done: make(chan struct{}), paths: map[int32]string{}}
	var err error
	if w.instance, err = Open(w.report); err != nil {
		return nil, err
	}
	w.close = sync.OnceFunc(func() {
		close(w.done)
		w.instance.Close()
	})
	return w, nil
}

// Add watches a file, or a directory and its direct entries. It does nothing if the path is watched already. The
// watch ends when the file or directory is removed or moved; it can be added again when the path exists again. It also
// ends when the path, such as a link that was turned, is added again and leads to another file or directory.
func (w *Watcher) Add(path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	wd, err := w.instance.Watch(path)
	if err != nil {
		return err
	}
	path = filepath.Clean(path)
	for old, watched := range w.paths {
		if watched == path && old != wd {
			delete(w.paths, old)
			w.instance.Unwatch(old)
		}
	}
	w.paths[wd] = path
	return nil
}

// Changes returns the channel of changes. The channel is never closed.
func (w *Watcher) Changes() <-chan Change { return w.changes }

// Close ends all watches.
func (w *Watcher) Close() { w.close() }

// report sends the path of an event to the reader of Changes, unless the watcher is closed.
func (w *Watcher) report(e Event) {
	path, known := w.path(e)
	if !known {
		return
	}
	select {
	case w.changes <- Change{Path: path, Removed: e.Removed}:
	case <-w.done:
	}
}

// path returns the changed path of an event; false if the event is not for the reader. It removes watches that have
// ended.
func (w *Watcher) path(e Event) (string, bool) {
	if e.Lost {
		return "", true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	dir, known := w.paths[e.Watch]
	if e.Moved || e.Ended {
		delete(w.paths, e.Watch)
	}
	if e.Moved && known { // changes in the moved directory are not changes of this path
		w.instance.Unwatch(e.Watch)
	}
	return filepath.Join(dir, e.Name), known && !e.Ended
}
