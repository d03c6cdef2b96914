package agent

import (
	"context"
	"time"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/periodic"
)

const (
	// clockEvery is how often the wall clock is compared with the time that has passed.
	clockEvery = time.Minute
	// clockSlack is by how much they may differ: a clock is always adjusted a little.
	clockSlack = 5 * time.Second
)

// watchClock calls moved when the wall clock was set, or the machine was suspended, until ctx ends. A timer does not
// notice that, but tokens, certificates and deadlines expire by the wall clock.
func watchClock(ctx context.Context, clock func() time.Time, moved func()) {
	began, shown := time.Now(), clock()
	for backoff.Sleep(ctx, periodic.Until(clockEvery)) {
		now, shows := time.Now(), clock()
		if drift := shows.Sub(shown) - now.Sub(began); drift.Abs() > clockSlack {
			moved()
		}
		began, shown = now, shows
	}
}
