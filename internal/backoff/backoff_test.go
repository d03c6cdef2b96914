package backoff

import (
	"context"
	"errors"
	"slices"
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
		t.Errorf("after working for only two delays the wait: got %s, want still the longest", d)
	}
	if d := b.Next(10 * time.Minute); d > firstDelay {
		t.Errorf("after working for long the wait: got %s, want the first", d)
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

// TestRepeat checks that attempts go on until the context ends, how long the waits are, and which errors are reported.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const limit = 5 * time.Second
		script := []struct {
			works time.Duration
			err   string
		}{
			{0, "in use"}, {0, "in use"}, {0, "in use"}, {0, "denied"}, {0, "denied"}, {0, "denied"}, {0, "denied"},
			{time.Hour, "denied"}, {0, ""}, {0, "denied"},
		}
		var starts []time.Time
		var got []string
		longest := time.Duration(0)
		last := time.Now()
		Repeat(ctx, limit, func() error {
			if len(starts) > 0 {
				longest = max(longest, time.Since(last))
			}
			starts = append(starts, time.Now())
			if len(starts) > len(script) {
				cancel()
				return errors.New("not reported, for the context has ended")
			}
			step := script[len(starts)-1]
			time.Sleep(step.works)
			last = time.Now()
			if step.err == "" {
				return nil
			}
			return errors.New(step.err)
		}, func(err error, retryIn time.Duration) {
			if retryIn <= 0 || retryIn > limit {
				t.Errorf("got a wait of %v, want one up to %v", retryIn, limit)
			}
			got = append(got, err.Error())
		})
		if want := []string{"in use", "denied", "denied"}; !slices.Equal(got, want) {
			t.Errorf("reported errors: got %q, want %q", got, want)
		}
		if len(starts) != len(script)+1 || longest > limit || longest < limit/2 {
			t.Errorf("got %d attempts with waits up to %v, want %d and %v to %v",
				len(starts), longest, len(script)+1, limit/2, limit)
		}
	})
}
