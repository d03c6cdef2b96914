// Package backoff says how long to wait between attempts at something that fails, and waits.
//
// It owns no goroutine and no state but that of a Backoff value, which belongs to its caller. It knows nothing about
// what is attempted. All packages that retry may call it. A crash leaves nothing behind.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	firstDelay = 200 * time.Millisecond
	lastDelay  = 30 * time.Second
)

// Backoff spaces attempts at something that fails: about 0.2 s, 0.4 s … 30 s, each with Jitter. The zero value is
// ready.
type Backoff struct{ last time.Duration }

// Next returns the wait before the next attempt. worked is how long the last attempt had worked before it failed, 0 if
// it never did. An attempt that worked clearly longer than the wait before it resets the delay: a connection that is
// cut now and then is renewed at once, one that is cut again and again is not.
func (b *Backoff) Next(worked time.Duration) time.Duration {
	if b.last == 0 || worked > max(4*b.last, time.Second) {
		b.last = firstDelay
	} else {
		b.last = min(2*b.last, lastDelay)
	}
	return Jitter(b.last)
}

// Doubled returns the wait after a number of failures in a row: first, doubled after each but the first, at most limit.
func Doubled(first, limit time.Duration, failures int) time.Duration {
	for ; failures > 1 && first < limit; failures-- {
		first *= 2
	}
	return min(first, limit)
}

// Jitter returns a random duration in [d/2, d), so that the nodes of a cluster do not all return at once. d is
// positive.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }

// Sleep waits for d or until ctx ends, and reports whether it waited in full.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
