package certs

import (
	"crypto/x509"
	"testing"
	"time"
)

// TestRenewAt checks that a certificate is renewed after 70 to 90 % of its validity, also if that is many years.
// Validities of more than 292 years, such as those without an end, count as so many.
func TestRenewAt(t *testing.T) {
	const year = 365 * 24 * time.Hour
	born := time.Now()
	endless := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	ends := []time.Time{born.Add(time.Hour), endless}
	for years := range time.Duration(292) {
		ends = append(ends, born.Add((years+1)*year))
	}
	for _, end := range ends {
		at := renewAt(&x509.Certificate{NotBefore: born, NotAfter: end})
		if share := float64(at.Sub(born)) / float64(end.Sub(born)); share < 0.699 || share > 0.901 {
			t.Errorf("valid until %s: got renewal after %.2f of the validity, want 0.7 to 0.9", end, share)
		}
	}
}

// TestClockIsCheckedEachMinute checks that a certificate is not looked at much later than a minute after a suspend of
// the machine, or after its clock was set: little may be left of its validity.
func TestClockIsCheckedEachMinute(t *testing.T) {
	now := time.Now()
	if wait := untilRenewal(now.Add(24*time.Hour), now); wait > 2*time.Minute {
		t.Errorf("wait with a day until the renewal: got %s, want at most 2m0s", wait)
	}
}
