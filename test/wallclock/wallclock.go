// Package wallclock makes times at which only the wall clock has moved, not the monotonic clock.
//
// Tests call it for a machine that was suspended, or whose clock was set. It has no state.
package wallclock

import (
	"testing"
	"time"
	"unsafe"
)

// After returns the time at which the wall clock shows d more than at from, and the monotonic clock the same.
func After(t testing.TB, from time.Time, d time.Duration) time.Time {
	t.Helper()
	to := from.Add(d)
	*(*int64)(unsafe.Add(unsafe.Pointer(&to), unsafe.Sizeof(uint64(0)))) -= int64(d) // ext of time.Time
	if to.Sub(from) != 0 || to.Round(0).Sub(from.Round(0)) != d {
		t.Fatalf("got %s after %s, want another time of the wall clock alone", to, from)
	}
	return to
}
