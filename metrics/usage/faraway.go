package usage

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/internal/backoff"
)

// farTimeout is how long a request waits for file systems that have never been measured.
const farTimeout = 200 * time.Millisecond

// farLimit is the timeout of a call to a driver.
const farLimit = 30 * time.Second

// faraway measures file systems that may hang, such as a network share whose server is down. There is at most one
// goroutine per file system, and a request waits at most farTimeout for all of them.
type faraway struct {
	mu  sync.Mutex
	all map[string]*far
}

type far struct {
	fileSystem
	// asked is the time of the last request, ended that of the end of the last measurement, whatever it has found.
	asked, ended time.Time
	// done is closed when the running measurement has ended; nil if none is running.
	done chan struct{}
}

// refresh starts a new measurement of each of these volumes that has not been measured for a minute. It waits at most
// farTimeout, for those that have never been measured.
func (f *faraway) refresh(volumes []Volume) {
	timeout := time.NewTimer(farTimeout)
	defer timeout.Stop()
	for _, done := range f.start(volumes, time.Now()) {
		select {
		case <-done:
		case <-timeout.C:
			return
		}
	}
}

// start starts the measurements, and returns the channels of the volumes that have never been measured. It forgets
// volumes that no request has asked for lately.
func (f *faraway) start(volumes []Volume, now time.Time) (first []<-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[string]*far{}
	}
	maps.DeleteFunc(f.all, func(_ string, one *far) bool { return one.done == nil && now.Sub(one.asked) > sizeKept })
	for _, v := range volumes {
		one := f.all[v.Path]
		if one == nil {
			one = &far{}
			f.all[v.Path] = one
		}
		one.asked = now
		if one.done == nil && now.Sub(one.ended) > sizeFresh {
			one.done = make(chan struct{})
			go f.measure(v, one)
		}
		if one.ended.IsZero() {
			first = append(first, one.done)
		}
	}
	return first
}

// read returns the last known figures of a volume.
func (f *faraway) read(v Volume) fileSystem {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.all[v.Path]; one != nil {
		return one.fileSystem
	}
	return fileSystem{}
}

func (f *faraway) measure(v Volume, one *far) {
	found := v.read()
	f.mu.Lock()
	defer f.mu.Unlock()
	if found.known || v.Ask != nil {
		one.fileSystem = found
	}
	close(one.done)
	one.done, one.ended = nil, time.Now()
}

// read returns the figures of the volume: those of its driver, or of its file system or device. While a file system
// does not answer, its pod can end.
func (v *Volume) read() fileSystem {
	if v.Ask != nil {
		return v.ask()
	}
	if v.Device {
		return readDevice(v.Path)
	}
	own, err := mounts.Remote(v.Path)
	if err != nil {
		return readFileSystem(v.Path)
	}
	defer own.Close()
	return readFileSystem(fmt.Sprintf("/proc/self/fd/%d", own.Fd()))
}

// ask returns the figures and the health that the driver of a volume reports.
func (v *Volume) ask() fileSystem {
	// Not the context of the request: later requests use the result too.
	ctx, cancel := context.WithTimeout(context.Background(), farLimit)
	defer cancel()
	f, ok := v.Ask(ctx)
	if !ok {
		return fileSystem{Figures: Figures{Abnormal: f.Abnormal}}
	}
	return nowKnown(f)
}

// WatchHealth asks the drivers of all volumes every one to two minutes until ctx ends, also without requests, so that
// an unhealthy volume is reported.
func (c *Collector) WatchHealth(ctx context.Context) {
	for backoff.Sleep(ctx, sizeFresh+rand.N(sizeFresh)) {
		pods, err := c.cfg.Pods(ctx)
		if err != nil {
			continue // the agent is stopping
		}
		all := make([]podUse, len(pods))
		for i := range pods {
			all[i].Pod = pods[i]
		}
		c.refreshVolumes(all)
	}
}

// refreshVolumes measures the volumes of these pods again, as faraway.refresh does.
func (c *Collector) refreshVolumes(pods []podUse) {
	var all []Volume
	for i := range pods {
		all = slices.AppendSeq(all, maps.Values(pods[i].Volumes))
	}
	c.far.refresh(all)
}
