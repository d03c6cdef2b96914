package limiter

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestDo checks that so many calls run at a time, in turn; one that takes too long gives its place up; one that waits
// in vain leaves.
func TestDo(t *testing.T) {
	const counts = 2 * time.Second
	synctest.Test(t, func(t *testing.T) {
		g := New(2, 2, counts)
		var inside, most, done atomic.Int32
		for range 10 {
			go g.Do(t.Context(), func() error {
				most.Store(max(most.Load(), inside.Add(1)))
				time.Sleep(time.Second)
				inside.Add(-1)
				done.Add(1)
				return nil
			})
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if most.Load() != 2 || done.Load() != 10 {
			t.Errorf("got %d calls at a time and %d done after 5 s, want 2 and 10", most.Load(), done.Load())
		}

		for range 2 {
			go g.Do(t.Context(), func() error { time.Sleep(time.Hour); return nil })
		}
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Do(short, func() error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller that gives up: got %v, want context.DeadlineExceeded", err)
		}
		began := time.Now()
		failed := errors.New("failed")
		if err := g.Do(t.Context(), func() error { return failed }); err != failed ||
			time.Since(began) != counts-time.Second {
			t.Errorf("got %v after %v, want %v after %v", err, time.Since(began), failed, counts-time.Second)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if g.inside != 0 || len(g.queue) != 0 {
			t.Errorf("in the end: got %d places in use and %d callers in the queue, want none", g.inside, len(g.queue))
		}
	})
}
