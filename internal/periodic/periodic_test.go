package periodic

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestUntil checks that work of two periods runs at the same moments, whenever it began and however long it takes, and
// that no wait is shorter than a tenth of the period.
func TestUntil(t *testing.T) {
	for _, phased := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			phase.Store(0)
			if phased {
				Spread()
				t.Cleanup(func() { phase.Store(0) })
			}
			long := time.Now().Add(Until(20 * time.Second))
			for began := range 40 {
				time.Sleep(time.Duration(began) * 731 * time.Millisecond)
				wait := Until(10 * time.Second)
				if wait < time.Second || wait >= 11*time.Second {
					t.Fatalf("phase %d: got a wait of %v, want 1 to 11 s", phase.Load(), wait)
				}
				if apart := time.Now().Add(wait).Sub(long) % (10 * time.Second); apart != 0 {
					t.Fatalf("phase %d: got moments that are %v apart, want multiples of 10 s", phase.Load(), apart)
				}
			}
		})
	}
}

// TestEachPeriod checks that work which calls Until after it has run runs once a period.
func TestEachPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		for i := 1; i <= 5; i++ {
			time.Sleep(Until(10 * time.Second))
			if got, want := time.Since(began), time.Duration(i)*10*time.Second; got != want {
				t.Fatalf("run %d: got %v after the start, want %v", i, got, want)
			}
			time.Sleep(20 * time.Millisecond) // the work
		}
	})
}
