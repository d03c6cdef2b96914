// Package inotify tells that something in a directory has changed.
//
// It owns the kernel's inotify instances and the goroutine that reads each, whose buffer is small: there are few changes, and who
// reads them in large pieces keeps as much memory for ever. It never decides what a change means: it is a hint, and its reader
// looks for itself. The rooms that live by files on the disk call it: by path (Watcher), or where paths are not to be trusted or
// many readers share an instance, by descriptor (Instance). A crash leaves nothing behind.
package inotify

import (
	"path/filepath"
	"sync"
)

// Watcher tells of changes at the paths that were added.
type Watcher struct {
	instance *Instance
	changes  chan string
	done     chan struct{}
	close    func()

	mu    sync.Mutex
	paths map[int32]string // by watch descriptor
}

// New makes a watcher that watches nothing yet.
func New() (*Watcher, error) {
	w := &Watcher{changes: make(chan string), done: make(chan struct{}), paths: map[int32]string{}}
	var err error
	if w.instance, err = Open(w.tell); err != nil {
		return nil, err
	}
	w.close = sync.OnceFunc(func() {
		close(w.done)
		w.instance.Close()
	})
	return w, nil
}

// Add watches a file, or a directory and what is right in it. It does nothing for what is watched already. What was removed or
// moved is watched no longer, and can be added again when it is back.
func (w *Watcher) Add(path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	wd, err := w.instance.Watch(path)
	if err == nil {
		w.paths[wd] = filepath.Clean(path)
	}
	return err
}

// Changes gives the path of what has changed, empty where changes were lost: then anything may have. It is never closed.
func (w *Watcher) Changes() <-chan string { return w.changes }

// Close ends the watching.
func (w *Watcher) Close() { w.close() }

// tell hands the path of an event on, unless the watcher is closed.
func (w *Watcher) tell(e Event) {
	path, known := w.path(e)
	if !known {
		return
	}
	select {
	case w.changes <- path:
	case <-w.done:
	}
}

// path is what an event is about; false where that concerns nobody. It forgets what is gone.
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
	if e.Moved && known { // what happens there is no change at this path any more
		w.instance.Unwatch(e.Watch)
	}
	return filepath.Join(dir, e.Name), known && !e.Ended
}
