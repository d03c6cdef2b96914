package watch

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	firstDelay = 200 * time.Millisecond
	lastDelay  = 30 * time.Second
)

// Backoff spaces attempts at something that fails: about 0.2 s, 0.4 s … 30 s, each shortened at random by up to a half so
// that many nodes spread. The zero value is ready.
type Backoff struct{ last time.Duration }

// Next is the wait before the next attempt, where the one that just ended had gone well for worked (0 for one that never
// worked). An attempt that worked a good while longer than the wait before it starts the row again, so that a connection
// which is cut now and then is taken up at once, while one which is cut again and again is not.
func (b *Backoff) Next(worked time.Duration) time.Duration {
	if b.last == 0 || worked > max(4*b.last, time.Second) {
		b.last = firstDelay
	} else {
		b.last = min(2*b.last, lastDelay)
	}
	return b.last - rand.N(b.last/2)
}

// Sleep waits for d or until ctx ends, and says whether it waited in full.
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
