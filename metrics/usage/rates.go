package usage

import (
	"maps"
	"sync"
	"time"
)

const (
	// rateAge is the minimum age of a sample from which a rate is calculated: over a shorter time, single bursts
	// would count too much.
	rateAge = 5 * time.Second
	// rateStale is the maximum age of a sample from which a rate is calculated.
	rateStale = 10 * time.Minute
	// firstRate is the time between the first two samples, for which the request waits.
	firstRate = 300 * time.Millisecond
)

// rates stores the CPU time of cgroups at the last request, from which the next request calculates the rate of use.
type rates struct {
	mu   sync.Mutex
	last map[string]sample
}

type sample struct {
	at   time.Time
	cpu  uint64
	rate uint64 // nanoseconds of CPU per second
	has  bool
}

// note takes one sample and returns the rate; ok is false if the cgroup has no earlier sample, or only an old one.
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

// forget removes the samples that are too old for a rate.
func (r *rates) forget(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.last, func(_ string, s sample) bool { return now.Sub(s.at) > rateStale })
}
