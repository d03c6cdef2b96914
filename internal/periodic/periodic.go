// Package periodic makes periodic work run at the same moments.
//
// It owns the phase of these moments, one number of the process. An agent at rest then wakes up once for all its
// periodic work, and the processors sleep longer. It runs nothing itself: callers wait as long as it says. All packages
// with periodic work may call it. A crash leaves nothing behind.
package periodic

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// phase is added to the time of day, in nanoseconds.
var phase atomic.Int64

// Spread gives this process a random phase, so that the agents of many nodes do not send their requests to the API
// server at the same moment. cmd/nodelet calls it once; without it, moments are those of the time of day, as tests
// expect.
func Spread() { phase.Store(rand.Int64N(int64(time.Hour))) }

// Until returns the time until the next moment of work with this period, which is positive: at least a tenth of the
// period, so that work which ran a little early does not run twice, and less than the period and a tenth. The moments
// of a period are also those of each period that divides it.
func Until(period time.Duration) time.Duration {
	wait := period - time.Duration(time.Now().UnixNano()+phase.Load())%period
	if wait < period/10 {
		wait += period
	}
	return wait
}
