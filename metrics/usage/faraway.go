package usage

import (
	"context"
	"sync"
	"time"
)

// farPatience is how long a request waits for a file system that has never been measured.
const farPatience = 200 * time.Millisecond

// farLimit is the timeout of a call to a driver.
const farLimit = 30 * time.Second

// faraway measures file systems that may hang, such as a network share whose server is down. There is at most one
// goroutine per file system, and a request waits at most farPatience for it.
type faraway struct {
	mu  sync.Mutex
	all map[string]*far
}

type far struct {
	fileSystem
	asked time.Time
	// done is closed when the running measurement has ended; nil if none is running.
	done chan struct{}
}

// read returns the last known figures of a volume. It starts a new measurement if they are older than a minute, and
// waits for it at most farPatience, only if no figures are known.
func (f *faraway) read(v Volume) fileSystem {
	now, path := time.Now(), v.Path
	f.mu.Lock()
	if f.all == nil {
		f.all = map[string]*far{}
	}
	for other, one := range f.all {
		if one.done == nil && now.Sub(one.asked) > sizeKept {
			delete(f.all, other)
		}
	}
	one := f.all[path]
	if one == nil {
		one = &far{}
		f.all[path] = one
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
		found = v.read()
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

// read returns the figures of the volume's file system or device.
func (v *Volume) read() fileSystem {
	if v.Device {
		return readDevice(v.Path)
	}
	return readFileSystem(v.Path)
}

// ask returns the figures and the health that the driver of a volume reports.
func ask(v Volume) fileSystem {
	if v.Ask == nil {
		return fileSystem{}
	}
	// Not the context of the request: later requests use the result too.
	ctx, cancel := context.WithTimeout(context.Background(), farLimit)
	defer cancel()
	f, ok := v.Ask(ctx)
	if !ok {
		return fileSystem{abnormal: f.Abnormal}
	}
	return fileSystem{
		at:         time.Now(),
		known:      true,
		abnormal:   f.Abnormal,
		capacity:   f.Capacity,
		available:  f.Available,
		used:       f.Used,
		inodes:     f.Inodes,
		inodesFree: f.InodesFree,
		inodesUsed: f.InodesUsed,
	}
}
