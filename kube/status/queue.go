package status

import (
	"cmp"
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/internal/limiter"
)

// enqueue queues e for sending, earlier than before if l is more urgent. An entry in flight is queued when its request
// ends, one that waits after an error when its back-off ends.
func (p *Publisher) enqueue(e *entry, l priority, now time.Time) {
	if l >= e.queued {
		return
	}
	e.queued = l
	if e.sending {
		return
	}
	if _, waits := p.delayed[e]; waits && !e.held {
		return
	}
	p.list(e, now)
	p.wake.Set()
}

// patience is how long statuses count as unsent in an outage, which may be a short one, and while a request for them is
// not answered.
const patience = 3 * time.Second

// Unsent reports whether something is being sent, or will be as soon as a held change at the latest. What waits longer
// has failed several times, and an outage may last. What has no place because requests hang does not count.
func (p *Publisher) Unsent() bool {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failures > 0 && now.Sub(p.failing) > patience {
		return false
	}
	ready, hanging := false, 0
	for _, e := range p.pods {
		_, waits := p.delayed[e]
		switch {
		case e.sending && now.Sub(e.sent) > patience:
			hanging++
		case e.sending, waits && e.notBefore.Sub(now) <= Hold:
			return true
		case e.queued != none && !waits && !e.fails:
			ready = true
		}
	}
	return ready && hanging < p.cfg.Parallel
}

// list queues e, which is not in flight, by its priority: an urgent one is sent now, another waits for more changes.
func (p *Publisher) list(e *entry, now time.Time) {
	if e.queued == normal && p.cfg.Hold > 0 {
		e.notBefore, e.held = now.Add(p.cfg.Hold), true
		p.delayed[e] = struct{}{}
		return
	}
	delete(p.delayed, e)
	e.held = false
	p.append(e)
}

// append adds e to the queue of its place.
func (p *Publisher) append(e *entry) {
	l := e.place()
	p.queues[l] = append(p.queues[l], e)
}

// place returns the priority with which e is sent, none if it is not queued. All others go before one that fails,
// however often it is set again: each of its requests may take long.
func (e *entry) place() priority {
	if e.fails {
		return max(e.queued, behind)
	}
	return e.queued
}

// dispatch starts as many requests as may run now, and returns after how long there may be more to start without a
// wake-up.
func (p *Publisher) dispatch(ctx context.Context, senders *sync.WaitGroup) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	next := p.release(now)
	if wait := p.resume.Sub(now); wait > 0 {
		return wait
	}
	limit := p.cfg.Parallel
	if p.failures > 0 {
		limit = 1 // one request is enough to find out whether the API server is back
	}
	for p.inFlight < limit {
		e := p.pop()
		if e == nil {
			break
		}
		e.sending, e.sent = true, now
		p.inFlight++
		j := e.job()
		senders.Go(func() {
			_ = limiter.WhileItCounts(sendCountFor, p.leave, func() error { p.send(ctx, e, j); return nil })
		})
	}
	return next
}

// job is what is to be sent of an entry. Set may change the entry meanwhile.
type job struct {
	target
	base, want *corev1.PodStatus
	gone       bool
	repeats    bool // the last request has failed
	gen        uint64
	since      time.Time
}

// job returns what is to be sent now. From then on, e.since is the time of a later Set.
func (e *entry) job() job {
	base := e.base
	j := job{target: e.target, base: &base, want: cmp.Or(e.want, &base), gone: e.gone, repeats: e.retry > 0, gen: e.gen,
		since: e.since}
	e.since = time.Time{}
	return j
}

// sendCountFor is how long a job counts as one of Parallel: others do not wait for one that hangs, as when a webhook
// for its namespace does not answer.
const sendCountFor = 30 * time.Second

// leave ends that a job counts as one of Parallel.
func (p *Publisher) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight--
	p.wake.Set()
}

// release queues the entries whose wait is over, and returns how long the next one still waits.
func (p *Publisher) release(now time.Time) time.Duration {
	next := time.Hour
	for e := range p.delayed {
		if wait := e.notBefore.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		delete(p.delayed, e)
		e.held = false
		p.append(e)
	}
	return next
}

// pop returns the next entry to send, nil if there is none. It skips entries that are not ready, and those that have
// another place now. Half of Parallel is kept from those that fail.
func (p *Publisher) pop() *entry {
	for l := range p.queues {
		if priority(l) == behind && 2*p.inFlight >= p.cfg.Parallel {
			return nil
		}
		for len(p.queues[l]) > 0 {
			e := p.queues[l][0]
			p.queues[l][0] = nil
			p.queues[l] = p.queues[l][1:]
			if _, waits := p.delayed[e]; !waits && !e.sending && e.place() == priority(l) {
				e.queued = none
				return e
			}
		}
	}
	return nil
}
