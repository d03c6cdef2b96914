package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nodelet/nodelet/cri"
)

// listing is a runtime that lists its pods, or does not.
type listing struct {
	Runtime
	err error
}

func (l *listing) Relist(context.Context) ([]cri.PodSummary, error) { return nil, l.err }

type uncounted struct{ Metrics }

func (uncounted) Relisted(time.Time, time.Duration) {}

// TestOutageIsLoggedOnce checks that a runtime that is away fills no log: its lists fail every second.
func TestOutageIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	runtime := &listing{}
	r := newRelister(runtime, uncounted{}, slog.New(slog.NewTextHandler(&log, nil)))
	for _, err := range []error{nil, errors.New("away"), errors.New("away"), nil, nil, errors.New("away again")} {
		runtime.err = err
		if _, ok := r.list(t.Context()); ok != (err == nil) {
			t.Errorf("runtime answers %v: got ok %v", err, ok)
		}
	}
	if got := strings.Count(log.String(), "level=WARN"); got != 2 {
		t.Errorf("got %d warnings, want one for each of 2 outages:\n%s", got, &log)
	}
	if got := strings.Count(log.String(), "lists its pods again"); got != 1 {
		t.Errorf("got %d ends, want 1:\n%s", got, &log)
	}
}
