package server

import (
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestFewRefusalsAreLogged checks that many refused requests do not fill the log, and that it tells how many it has
// left out.
func TestFewRefusalsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		l := &refusals{out: slog.New(slog.NewTextHandler(&log, nil))}
		refuse := func(requests, want int) {
			t.Helper()
			for range requests {
				l.log(httptest.NewRequest("GET", "/pods", nil), 401, "", errors.New("no credentials"))
			}
			if n := strings.Count(log.String(), "request refused"); n != want {
				t.Errorf("got %d refusals in the log, want %d", n, want)
			}
		}
		refuse(60, refusalsEach)
		time.Sleep(refusalsSpan - 1)
		refuse(1, refusalsEach)
		time.Sleep(1)
		refuse(60, 2*refusalsEach)
		if !strings.Contains(log.String(), "skipped=41") {
			t.Errorf("got the log\n%s\nwant that it has left out 41 refusals", &log)
		}
	})
}
