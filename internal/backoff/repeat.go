package backoff

import (
	"context"
	"time"
)

// Repeat calls attempt again and again until ctx ends: what serves or watches begins again after an error. attempt
// returns when it has failed or ctx has ended. The wait before the next attempt is that of a Backoff, at most limit.
// failed receives the error and the wait, but not the same error again and again while no attempt works for long.
func Repeat(ctx context.Context, limit time.Duration, attempt func() error, failed func(error, time.Duration)) {
	var b Backoff
	for last := ""; ; {
		began := time.Now()
		err := attempt()
		if ctx.Err() != nil {
			return
		}
		wait := min(b.Next(time.Since(began)), limit)
		if err != nil && (b.last == firstDelay || err.Error() != last) {
			last = err.Error()
			failed(err, wait)
		}
		if !Sleep(ctx, wait) {
			return
		}
	}
}
