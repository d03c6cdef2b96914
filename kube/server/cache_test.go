package server

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestQuestionsAreBounded checks that few callers wait for a slow API server, also with those that have left: each
// holds a request or a token, and that still fewer are asked about at a time. When it answers, others are served again.
func TestQuestionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, answer := newAnswerCache[int](), make(chan struct{})
		var asked atomic.Int32
		ask := func(context.Context) (int, time.Duration, error) {
			asked.Add(1)
			<-answer
			return 1, time.Minute, nil
		}
		ctx, leave := context.WithCancel(t.Context())
		var refused, left atomic.Int32
		start := func(key string) {
			go func() {
				_, err := m.get(ctx, key, ask)
				switch err {
				case errBusy:
					refused.Add(1)
				case context.Canceled:
					left.Add(1)
				}
			}()
		}
		for i := range 2 * maxWaiting {
			start(strconv.Itoa(i))
		}
		synctest.Wait()
		if n := refused.Load(); n < maxWaiting || n == 2*maxWaiting {
			t.Errorf("got %d of %d callers refused, want most", n, 2*maxWaiting)
		}
		if n := asked.Load(); n != maxAsking {
			t.Errorf("got %d requests at a time, want %d", n, maxAsking)
		}
		leave()
		synctest.Wait()
		if n := left.Load() + refused.Load(); n != 2*maxWaiting {
			t.Errorf("got %d callers that have left, want %d", n, 2*maxWaiting)
		}
		if n := m.waiting.Load(); n < maxAsking || n > maxWaiting {
			t.Errorf("got %d questions that go on, want %d to %d", n, maxAsking, maxWaiting)
		}
		close(answer)
		synctest.Wait()
		if v, err := m.get(t.Context(), "next", ask); v != 1 || err != nil {
			t.Errorf("got %d, %v, want an answer", v, err)
		}
	})
}
