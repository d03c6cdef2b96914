package logs

import (
	"os"
	"strconv"
	"sync"

	"github.com/nodelet/nodelet/host/inotify"
	"github.com/nodelet/nodelet/internal/latest"
)

// watcher notifies readers of changes in a directory. All share one inotify instance, because the kernel allows a user
// only few; it is open only while a log is followed.
type watcher struct {
	mu       sync.Mutex
	instance *inotify.Instance
	dirs     map[int32]map[latest.Signal]struct{} // by watch descriptor
	count    int
}

// add begins to watch an open directory. A change makes the channel readable, many at once only once.
func (w *watcher) add(dir *os.File) (changes <-chan struct{}, stop func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.instance == nil {
		if err := w.start(); err != nil {
			return nil, nil, err
		}
	}
	wd, err := w.instance.Watch("/proc/self/fd/" + strconv.Itoa(int(dir.Fd())))
	if err != nil {
		if w.count == 0 {
			w.end()
		}
		return nil, nil, err
	}
	c := latest.NewSignal()
	if w.dirs[wd] == nil {
		w.dirs[wd] = map[latest.Signal]struct{}{}
	}
	w.dirs[wd][c] = struct{}{}
	w.count++
	return c, sync.OnceFunc(func() { w.remove(wd, c) }), nil
}

// start opens the instance. w.mu is held.
func (w *watcher) start() (err error) {
	var instance *inotify.Instance
	instance, err = inotify.Open(func(e inotify.Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.instance == instance { // and not a later one
			w.wake(e)
		}
	})
	w.instance, w.dirs = instance, map[int32]map[latest.Signal]struct{}{}
	return err
}

// end closes the instance. w.mu is held.
func (w *watcher) end() {
	w.instance.Close()
	w.instance, w.dirs = nil, nil
}

func (w *watcher) remove(wd int32, c latest.Signal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count--
	if delete(w.dirs[wd], c); len(w.dirs[wd]) == 0 {
		delete(w.dirs, wd)
		w.instance.Unwatch(wd)
	}
	if w.count == 0 {
		w.end()
	}
}

// wake notifies the readers of an event. w.mu is held.
func (w *watcher) wake(e inotify.Event) {
	if !e.Lost {
		setAll(w.dirs[e.Watch])
		return
	}
	for _, readers := range w.dirs {
		setAll(readers)
	}
}

func setAll(readers map[latest.Signal]struct{}) {
	for c := range readers {
		c.Set()
	}
}
