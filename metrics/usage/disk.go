package usage

import (
	"log/slog"
	"path/filepath"
	"sync"
	"time"
)

const (
	// sizeFresh is how long a measured size is valid, as the default of the kubelet's volumeStatsAggPeriod.
	sizeFresh = time.Minute
	// sizeKept is how long a size is kept if no caller asks for it.
	sizeKept = 10 * time.Minute
	// firstSizes is how long a request waits for places that have never been measured.
	firstSizes = 300 * time.Millisecond
)

// size is the disk usage of a place.
type size struct {
	Amount
	// at is the time of the measurement, asked the time of the last request for it.
	at, asked time.Time
	// took is the duration of the last measurement.
	took time.Duration
	// tried reports that it has been measured at least once, known that a measurement was successful.
	tried, known bool
}

// disks measures places, one at a time, in a goroutine that runs while the queue is not empty.
type disks struct {
	log *slog.Logger

	mu    sync.Mutex
	sizes map[place]size
	queue map[place]bool
	// current is the place that is being measured.
	current place
	running bool
	// waiters are closed when the queue is empty.
	waiters []chan struct{}
}

func newDisks(log *slog.Logger) *disks {
	return &disks{log: log, sizes: map[place]size{}, queue: map[place]bool{}}
}

// sizesOf returns the known sizes of these places. It waits at most timeout for those that have never been measured.
// Old sizes are returned, and measured again for the next caller.
func (d *disks) sizesOf(places []place, timeout time.Duration) map[place]size {
	if done := d.ask(places, time.Now()); done != nil {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := make(map[place]size, len(places))
	for _, p := range places {
		if s := d.sizes[p]; s.known {
			known[p] = s
		}
	}
	return known
}

// ask queues the places whose size is old or unknown. It returns a channel that is closed when all are measured; nil
// if every place has been measured before.
func (d *disks) ask(places []place, now time.Time) (done chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	tried := true
	for _, p := range places {
		s := d.sizes[p]
		tried = tried && s.tried
		if p != d.current && (!s.known || now.Sub(s.at) > sizeFresh) {
			d.queue[p] = true
		}
		s.asked = now
		d.sizes[p] = s
	}
	for p, s := range d.sizes {
		if now.Sub(s.asked) > sizeKept && !d.queue[p] {
			delete(d.sizes, p)
		}
	}
	if len(d.queue) > 0 && !d.running {
		d.running = true
		go d.measure()
	}
	if tried {
		return nil
	}
	done = make(chan struct{})
	d.waiters = append(d.waiters, done)
	return done
}

// measure measures the queued places until the queue is empty.
func (d *disks) measure() {
	for {
		p, more := d.next()
		if !more {
			return
		}
		began := time.Now()
		sum, err := walk(p, began.Add(walkTime))
		if err != nil {
			d.log.Debug("cannot measure the size of a directory", "dir", filepath.Join(p.base, p.below), "err", err)
		}
		d.mu.Lock()
		s := d.sizes[p]
		s.at = time.Now()
		s.took = time.Since(began)
		s.tried = true
		if err == nil {
			s.Amount, s.known = sum, true
		}
		d.sizes[p] = s
		d.mu.Unlock()
	}
}

// next removes the place with the shortest last measurement from the queue and returns it, so that a pod with many
// files delays only its own figures.
func (d *disks) next() (p place, more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for q := range d.queue {
		if !more || d.sizes[q].took < d.sizes[p].took {
			p, more = q, true
		}
	}
	d.current = p
	delete(d.queue, p)
	if !more {
		d.running = false
		for _, w := range d.waiters {
			close(w)
		}
		d.waiters = nil
	}
	return p, more
}
