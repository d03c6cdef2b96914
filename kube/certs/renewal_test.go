package certs

import (
	"testing"
	"time"
)

// TestClockIsCheckedEachMinute checks that a certificate is not looked at much later than a minute after a suspend of
// the machine, or after its clock was set: little may be left of its validity.
func TestClockIsCheckedEachMinute(t *testing.T) {
	now := time.Now()
	if wait := untilRenewal(now.Add(24*time.Hour), now); wait > 2*time.Minute {
		t.Errorf("wait with a day until the renewal: got %s, want at most 2m0s", wait)
	}
}
