package usage

import (
	"sync"
	"time"
)

const (
	// rateAge is how old a sample must be before the next makes a rate: over less, single bursts would count too much.
	rateAge = 5 * time.Second
	// rateStale is how old a sample may be to make a rate of now.
	rateStale = 10 * time.Minute
	// firstRate is how long a request waits for the second of the first two samples.
	firstRate = 300 * time.Millisecond
)

// rates remember the CPU time that cgroups had used when somebody last asked, to tell how fast they use it.
type rates struct {
	mu   sync.Mutex
	last map[string]sample
}

type sample struct {
	at   time.Time
	cpu  uint64
	rate uint64 // nanoseconds of CPU a second
	has  bool
}

// note takes one sample and gives the rate; ok is false for a cgroup that was never asked about, or long ago.
func (r *rates) note(cgroup string, u *Usage) (rate uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[string]sample{}
	}
	old, known := r.last[cgroup]
	gone := u.At.Sub(old.at)
	switch {
	case !known || gone > rateStale || u.CPU < old.cpu:
		r.last[cgroup] = sample{at: u.At, cpu: u.CPU}
		return 0, false
	case old.has && gone < rateAge:
		return old.rate, true
	case gone <= 0:
		return 0, false
	}
	next := sample{at: u.At, cpu: u.CPU, rate: uint64(float64(u.CPU-old.cpu) / gone.Seconds()), has: true}
	r.last[cgroup] = next
	return next.rate, true
}

// forget drops the samples older than those that can make a rate.
func (r *rates) forget(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for cgroup, s := range r.last {
		if now.Sub(s.at) > rateStale {
			delete(r.last, cgroup)
		}
	}
}
