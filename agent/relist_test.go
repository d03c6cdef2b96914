package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/cri"
)

// listing is a runtime that lists its pods, or does not.
type listing struct {
	Runtime
	away  atomic.Bool
	lists atomic.Int32
}

func (l *listing) Relist(context.Context) ([]cri.PodSummary, error) {
	l.lists.Add(1)
	if l.away.Load() {
		return nil, errors.New("away")
	}
	return nil, nil
}

func (l *listing) Watch(ctx context.Context, _ func(types.UID, cri.Instance), _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}

type uncounted struct{ Metrics }

func (uncounted) Relisted(time.Time, time.Duration, error) {}

// TestOutageIsLoggedOnce checks that a runtime that is away fills no log: its lists fail every second.
func TestOutageIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	runtime := &listing{}
	r := newRelister(runtime, uncounted{}, slog.New(slog.NewTextHandler(&log, nil)))
	for _, away := range []bool{false, true, true, false, false, true} {
		runtime.away.Store(away)
		if _, ok := r.list(t.Context()); ok == away {
			t.Errorf("runtime is away %v: got ok %v", away, ok)
		}
	}
	if got := strings.Count(log.String(), "level=WARN"); got != 2 {
		t.Errorf("got %d warnings, want one for each of 2 outages:\n%s", got, &log)
	}
	if got := strings.Count(log.String(), "lists its pods again"); got != 1 {
		t.Errorf("got %d ends, want 1:\n%s", got, &log)
	}
}

// TestFailedListIsRepeated checks that a list which failed is repeated soon, also after earlier ones have succeeded.
func TestFailedListIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &listing{}
		r := newRelister(runtime, uncounted{}, discard())
		ctx, cancel := context.WithCancel(t.Context())
		var listed atomic.Int32
		go r.run(ctx, nil, func([]cri.PodSummary) { listed.Add(1) })
		sleep := func(d time.Duration) { time.Sleep(d); synctest.Wait() } // the relister lists at the same moment
		sleep(2 * relistEvery)
		runtime.away.Store(true)
		before := runtime.lists.Load()
		sleep(2 * relistEvery)
		runtime.away.Store(false)
		failed, succeeded := runtime.lists.Load()-before, listed.Load()
		sleep(2 * relistWithoutEvents)
		if got := listed.Load() - succeeded; got != 1 || failed < 30 {
			t.Errorf("got %d lists while they fail and %d after them, want at least 30 and 1", failed, got)
		}
		cancel()
		synctest.Wait()
	})
}
