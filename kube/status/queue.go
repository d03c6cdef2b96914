package status

import (
	"context"
	"sync"
	"time"
)

// enqueue lists e for sending, earlier than before if l is more urgent. An entry in flight is listed when it returns, one
// that waits after an error when its time has come.
func (p *Publisher) enqueue(e *entry, l lane, now time.Time) {
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
	p.kick()
}

// list puts e, which is not in flight, where its lane says: an urgent one among those to send now, another among those that
// wait for more to come.
func (p *Publisher) list(e *entry, now time.Time) {
	if e.queued == normal && p.cfg.Hold > 0 {
		e.notBefore, e.held = now.Add(p.cfg.Hold), true
		p.delayed[e] = struct{}{}
		return
	}
	delete(p.delayed, e)
	e.held = false
	p.queues[e.queued] = append(p.queues[e.queued], e)
}

func (p *Publisher) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// dispatch starts as many requests as may run now and returns how long until there may be more to start without a wake.
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
		limit = 1 // one request finds out whether the API server is back
	}
	for p.inFlight < limit {
		e := p.pop()
		if e == nil {
			break
		}
		e.sending = true
		p.inFlight++
		job := e.job()
		senders.Go(func() { p.send(ctx, e, job) })
	}
	p.tellIdle()
	return next
}

// release lists the entries whose time after an error has come, and returns how long until the next one's.
func (p *Publisher) release(now time.Time) time.Duration {
	next := time.Hour
	for e := range p.delayed {
		if wait := e.notBefore.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		delete(p.delayed, e)
		e.held = false
		if e.queued != none {
			p.queues[e.queued] = append(p.queues[e.queued], e)
		}
	}
	return next
}

// pop takes the next entry to send, nil if there is none. An entry that was listed again as urgent leaves its first
// listing behind, which is skipped here.
func (p *Publisher) pop() *entry {
	for l := range p.queues {
		for len(p.queues[l]) > 0 {
			e := p.queues[l][0]
			p.queues[l][0] = nil
			p.queues[l] = p.queues[l][1:]
			if e.queued == lane(l) && !e.sending {
				e.queued = none
				return e
			}
		}
	}
	return nil
}

// settled reports whether nothing is wanted that is not at the server.
func (p *Publisher) settled() bool {
	if p.inFlight > 0 || len(p.delayed) > 0 {
		return false
	}
	for _, e := range p.pods {
		if e.want != nil {
			return false
		}
	}
	return true
}

func (p *Publisher) tellIdle() {
	if len(p.idle) == 0 || !p.settled() {
		return
	}
	for _, done := range p.idle {
		close(done)
	}
	p.idle = nil
}
