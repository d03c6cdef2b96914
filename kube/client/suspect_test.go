package client

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/test/pipe"
)

// TestSuspectEndsWatches checks that a watch ends soon after heartbeats have failed if DISABLE_HTTP2 is set, as its
// connection may be dead and HTTP/1.1 has no pings. Without it, watches stay.
func TestSuspectEndsWatches(t *testing.T) {
	for disable, ends := range map[string]bool{"": false, "1": true} {
		t.Setenv("DISABLE_HTTP2", disable)
		synctest.Test(t, func(t *testing.T) {
			listener := pipe.Listen()
			watch := func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}
			server := &http.Server{Handler: http.HandlerFunc(watch)}
			defer server.Close()
			go func() { _ = server.Serve(listener) }()
			transport := NewTransport(time.Minute)
			if err := transport.Use(&rest.Config{Host: "http://api", Dial: listener.Dial}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api/watch", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := resp.Body.Read(make([]byte, 1))
				ended <- err
			}()
			if err := transport.Suspect(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(drainTime + time.Second)
			synctest.Wait()
			if got := len(ended) > 0; got != ends {
				t.Errorf("DISABLE_HTTP2=%s: got that the watch has ended: %v, want %v", disable, got, ends)
			}
			cancel()
			_ = resp.Body.Close()
		})
	}
}
