package certs

import (
	"crypto/x509"
	"math/rand/v2"
	"time"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/periodic"
)

// clockCheck is the longest wait between two checks of the wall clock: a timer does not notice that the clock was set
// or that the machine was suspended.
const clockCheck = time.Minute

// lookAgain is when to look again at a certificate that the agent does not renew.
const lookAgain = time.Hour

// renewAt returns when to renew a certificate: after 70 to 90 % of its validity, so that nodes that joined together do
// not renew together.
func renewAt(c *x509.Certificate) time.Time {
	validity := float64(c.NotAfter.Sub(c.NotBefore)) // seven times 42 years overflows an int64
	return c.NotBefore.Add(time.Duration((0.7 + 0.2*rand.Float64()) * validity))
}

// untilRenewal returns how long to wait before the next check whether the time is at.
func untilRenewal(at, now time.Time) time.Duration {
	return max(0, min(periodic.Until(clockCheck), at.Sub(now)))
}

// retry returns the wait after failed consecutive failures: 2 s, doubled each time up to 5 minutes.
func retry(failed int) time.Duration { return backoff.Doubled(2*time.Second, 5*time.Minute, failed) }
