package endpoints

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodelet/nodelet/test/pipe"
)

// TestHealthzConnections checks that clients can neither hold many connections nor hold one for long.
func TestHealthzConnections(t *testing.T) {
	for name, c := range map[string]struct {
		send string
		wait time.Duration
		most int32
	}{
		"many":    {"GET /healthz HTTP/1.1\r\n", 0, 256},
		"headers": {"GET /healthz HTTP/1.1\r\n", 10 * time.Second, 0},
		"body":    {"POST /healthz HTTP/1.1\r\nHost: n\r\nContent-Length: 9\r\n\r\n", 10 * time.Second, 0},
		"idle":    {"GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n", 2 * time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				l := pipe.Listen()
				go serveHealthz(ctx, func() (net.Listener, error) { return l, nil },
					http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }),
					func(error, time.Duration) {})
				var open atomic.Int32
				for range 300 {
					client, err := l.Dial(ctx, "", "")
					if err != nil {
						t.Fatal(err)
					}
					open.Add(1)
					go func() {
						defer open.Add(-1)
						_, _ = io.Copy(io.Discard, client)
					}()
					_, _ = io.WriteString(client, c.send)
				}
				time.Sleep(c.wait)
				synctest.Wait()
				if got := open.Load(); got > c.most || c.most > 0 && got == 0 {
					t.Errorf("open connections: got %d, want at most %d", got, c.most)
				}
			})
		})
	}
}
