package stats

import (
	"sync"
	"time"
)

// farPatience is how long a request waits for file systems that were never measured.
const farPatience = 200 * time.Millisecond

// faraway measures file systems that may hang, such as a network share whose server is gone: each in a goroutine of its own,
// never two for one, and nobody waits long.
type faraway struct {
	mu  sync.Mutex
	all map[string]*far
}

type far struct {
	fileSystem
	asked time.Time
	// done is closed when the measurement under way has ended; nil if there is none.
	done chan struct{}
}

// read gives the file system at dir as it is known by now, a minute old at most unless it hangs.
func (f *faraway) read(dir string) fileSystem {
	now := time.Now()
	f.mu.Lock()
	if f.all == nil {
		f.all = map[string]*far{}
	}
	for other, one := range f.all {
		if one.done == nil && now.Sub(one.asked) > sizeKept {
			delete(f.all, other)
		}
	}
	one := f.all[dir]
	if one == nil {
		one = &far{}
		f.all[dir] = one
	}
	one.asked = now
	if one.done == nil && now.Sub(one.at) > sizeFresh {
		one.done = make(chan struct{})
		go f.measure(dir, one)
	}
	known, done := one.fileSystem, one.done
	f.mu.Unlock()
	if known.known || done == nil {
		return known
	}
	patience := time.NewTimer(farPatience)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return one.fileSystem
}

func (f *faraway) measure(dir string, one *far) {
	found := readFileSystem(dir)
	f.mu.Lock()
	defer f.mu.Unlock()
	if found.known {
		one.fileSystem = found
	}
	close(one.done)
	one.done = nil
}
