package flight

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestDo checks that those who ask for the same share one run, also if one of them goes; when all have gone, the run
// ends, and the next who asks gets a run of its own.
func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		runs, ended := 0, 0
		work := func(ctx context.Context) (int, error) {
			runs++
			defer func() { ended++ }()
			select {
			case <-time.After(time.Hour):
				return runs, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		var all sync.WaitGroup
		ask := func(ctx context.Context, want int, wantErr error) {
			all.Go(func() {
				if got, err := g.Do(ctx, "a", work); got != want || !errors.Is(err, wantErr) {
					t.Errorf("got %d, %v, want %d, %v", got, err, want, wantErr)
				}
			})
		}
		gone, leave := context.WithCancelCause(t.Context())
		moved := errors.New("moved")
		ask(gone, 0, moved)
		synctest.Wait()
		for range 3 {
			ask(t.Context(), 1, nil)
		}
		synctest.Wait()
		leave(moved)
		all.Wait()

		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ask(short, 0, context.DeadlineExceeded)
		all.Wait()
		synctest.Wait()
		if runs != 2 || ended != 2 {
			t.Errorf("after all have gone: got %d runs, %d of them ended, want 2", runs, ended)
		}
		ask(t.Context(), 3, nil)
		all.Wait()
		if len(g.flights) != 0 {
			t.Errorf("got %d flights kept, want 0", len(g.flights))
		}
	})
}
