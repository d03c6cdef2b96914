package usage

import (
	"context"
	"sync"
	"time"
)

// farPatience is how long a request waits for file systems that were never measured.
const farPatience = 200 * time.Millisecond

// farLimit is how long a driver may take to answer.
const farLimit = 30 * time.Second

// faraway measures file systems that may hang, such as a network share whose server is gone: each in a goroutine of
// its own, never two for one, and nobody waits long.
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

// read gives the figures of a volume as they are known by now, a minute old at most unless it hangs.
func (f *faraway) read(v Volume) fileSystem {
	now, dir := time.Now(), v.Dir
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
		go f.measure(v, one)
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

func (f *faraway) measure(v Volume, one *far) {
	found := ask(v)
	if !found.known {
		abnormal := found.abnormal
		found = readFileSystem(v.Dir)
		found.abnormal = abnormal
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if found.known {
		one.fileSystem = found
	}
	close(one.done)
	one.done = nil
}

// ask gives what a volume's driver says of it.
func ask(v Volume) fileSystem {
	if v.Ask == nil {
		return fileSystem{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), farLimit) // it is measured for whoever asks next as well
	defer cancel()
	f, ok := v.Ask(ctx)
	if !ok {
		return fileSystem{abnormal: f.Abnormal}
	}
	return fileSystem{at: time.Now(), known: true, abnormal: f.Abnormal, capacity: f.Capacity, available: f.Available, used: f.Used,
		inodes: f.Inodes, inodesFree: f.InodesFree, inodesUsed: f.InodesUsed}
}
