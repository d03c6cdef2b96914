package certs

import (
	"crypto/x509"
	"math/rand/v2"
	"time"
)

// clockLook is the longest wait between two looks at the wall clock: a timer does not see the clock being set, nor a machine
// that slept.
const clockLook = time.Hour

// renewAt is when a certificate is to be renewed: after 70 to 90 % of its life, so that nodes that joined together spread.
func renewAt(c *x509.Certificate) time.Time {
	life := c.NotAfter.Sub(c.NotBefore)
	return c.NotBefore.Add(life*7/10 + time.Duration(rand.Float64()*0.2*float64(life)))
}

// untilRenewal is how long to wait before the next look whether at has come.
func untilRenewal(at, now time.Time) time.Duration { return max(0, min(clockLook, at.Sub(now))) }

// retry is the wait after failed requests in a row: 2 s, doubled each time up to 5 minutes.
func retry(failed int) time.Duration {
	return min(2*time.Second<<min(failed-1, 10), 5*time.Minute)
}
