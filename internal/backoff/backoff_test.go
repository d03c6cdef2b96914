package backoff

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoff(t *testing.T) {
	var b Backoff
	var total time.Duration
	for range 10 {
		total += b.Next(0)
	}
	if total < 45*time.Second || total > 142*time.Second {
		t.Errorf("ten failures in a row wait %s, want 0.2 s doubling to 30 s, less up to a half", total)
	}
	if d := b.Next(time.Minute); d < lastDelay/2 {
		t.Errorf("after working for only two delays the wait is %s, want still the longest", d)
	}
	if d := b.Next(10 * time.Minute); d > firstDelay {
		t.Errorf("after working for long the wait is %s, want the first", d)
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if full := Sleep(t.Context(), time.Minute); !full || time.Since(began) != time.Minute {
			t.Errorf("got %v after %v, want true after a minute", full, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if full := Sleep(ctx, time.Minute); full || time.Since(began) != time.Second {
			t.Errorf("got %v after %v, want false after a second", full, time.Since(began))
		}
	})
}
