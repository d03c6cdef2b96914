package usage

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"time"
)

const (
	// sizeFresh is how long a measured size is valid, as the default of the kubelet's volumeStatsAggPeriod.
	sizeFresh = time.Minute
	// sizeKept is how long a size is kept if no caller asks for it.
	sizeKept = 10 * time.Minute
	// sizesTimeout is how long a request waits for sizes that are old or unknown.
	sizesTimeout = 300 * time.Millisecond
	// oldTimeout is how long a caller waits at most for sizes that are old: they still say which pods take much, and the
	// disk may be filling up.
	oldTimeout = 2 * time.Second
	// firstWalk limits the first walk of a place. What that has left out is measured after the other places, so that the
	// use of all pods is known soon, at least in part.
	firstWalk = time.Second
	// walkShare is how much later, in multiples of its duration, a place is measured again if there is too little time for
	// all places.
	walkShare = 10
)

// size is the disk usage of a place.
type size struct {
	Amount
	// at is the time of the last measurement, zero before the first; asked is the time of the last request for it.
	at, asked time.Time
	// took is the duration of the last measurement.
	took time.Duration
	// known reports that a measurement was successful, cut that the last one left something out.
	known, cut bool
}

// due orders measurements: the place with the earliest is the next.
func (s size) due() time.Time { return s.at.Add(walkShare * s.took) }

// disks measures places, one at a time, in a goroutine that runs while the queue is not empty.
type disks struct {
	log *slog.Logger
	// firstWalk limits the first walk of a place.
	firstWalk time.Duration

	mu    sync.Mutex
	sizes map[place]size
	queue map[place]bool
	// current is the place that is being measured.
	current place
	running bool
	// known is closed and replaced when each place has been measured once, fresh when the queue is empty.
	known, fresh chan struct{}
}

func newDisks(log *slog.Logger) *disks {
	return &disks{
		log: log, firstWalk: firstWalk,
		sizes: map[place]size{}, queue: map[place]bool{},
		known: make(chan struct{}), fresh: make(chan struct{}),
	}
}

// release ends the wait of those who wait for c, and replaces it.
func release(c *chan struct{}) {
	close(*c)
	*c = make(chan struct{})
}

// sizesOf returns the sizes of those of these places that have been measured. It waits at most timeout, and for sizes
// that are old at most oldTimeout: it returns the old ones then.
func (d *disks) sizesOf(ctx context.Context, places []place, timeout time.Duration) map[place]size {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	known, fresh := d.ask(places, time.Now())
	await(ctx, known)
	ctx, cancelOld := context.WithTimeout(ctx, oldTimeout)
	defer cancelOld()
	await(ctx, fresh)
	d.mu.Lock()
	defer d.mu.Unlock()
	measured := make(map[place]size, len(places))
	for _, p := range places {
		if s := d.sizes[p]; !s.at.IsZero() {
			measured[p] = s
		}
	}
	return measured
}

// await waits until c is closed, or ctx ends. Nil stands for nothing to wait for.
func await(ctx context.Context, c <-chan struct{}) {
	if c == nil {
		return
	}
	select {
	case <-c:
	case <-ctx.Done():
	}
}

// ask queues the places whose size is old or unknown. It returns a channel that is closed when all have been measured
// once, if only in part, and one that is closed when no size is old; nil if that is so. It forgets places that no
// request has asked for lately.
func (d *disks) ask(places []place, now time.Time) (known, fresh <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.sizes, func(_ place, s size) bool { return now.Sub(s.asked) > sizeKept })
	for _, p := range places {
		s := d.sizes[p]
		old := now.Sub(s.at) > sizeFresh || d.queue[p] || p == d.current
		if s.at.IsZero() {
			known = d.known
		}
		if old {
			fresh = d.fresh
		}
		if p != d.current && (old || !s.known) {
			d.queue[p] = true
		}
		s.asked = now
		d.sizes[p] = s
	}
	if len(d.queue) > 0 && !d.running {
		d.running = true
		go d.measure()
	}
	return known, fresh
}

// measure measures the queued places until the queue is empty.
func (d *disks) measure() {
	for {
		p, limit, more := d.next()
		if !more {
			return
		}
		began := time.Now()
		sum, err := walk(p, began.Add(limit))
		d.record(p, began, limit, sum, err)
	}
}

// record keeps the result of a walk that began at a time and had a limit.
func (d *disks) record(p place, began time.Time, limit time.Duration, sum Amount, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.sizes[p]
	s.at = time.Now()
	s.took = time.Since(began)
	again := limit < walkTime && s.took >= limit
	if again {
		d.queue[p] = true // the walk was cut short
	}
	cut := errors.Is(err, errCut)
	dir := filepath.Join(p.base, p.below)
	switch {
	case cut && !again && !s.cut:
		d.log.Warn("cannot measure a whole directory, limits and evictions count less than it has", "dir", dir, "err", err)
	case err != nil:
		d.log.Debug("cannot measure the size of a directory", "dir", dir, "err", err)
	}
	s.cut = cut && !again
	if err == nil || cut {
		s.Amount, s.known = sum, true
	}
	d.sizes[p] = s
}

// next removes a place from the queue and returns it with the limit of its walk: one that has not been measured, then
// the oldest. A long walk makes a place younger, so that a pod with many files delays only its own figures.
func (d *disks) next() (p place, limit time.Duration, more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for q := range d.queue {
		if !more || d.sizes[q].due().Before(d.sizes[p].due()) {
			p, more = q, true
		}
	}
	d.current = p
	delete(d.queue, p)
	if more && d.sizes[p].at.IsZero() {
		return p, d.firstWalk, true
	}
	release(&d.known)
	if !more {
		d.running = false
		release(&d.fresh)
	}
	return p, walkTime, more
}
