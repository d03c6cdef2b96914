package node

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// halfOpenProxy is a TCP proxy that can stop its open connections as a firewall does that has lost their state: it
// sends no packets and no reset. New connections work.
type halfOpenProxy struct {
	net.Listener
	backend string
	mu      sync.Mutex
	open    []*atomic.Bool // one for each connection: true while it forwards bytes
	all     []net.Conn
}

func (c *halfOpenProxy) serve() {
	for {
		in, err := c.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", c.backend)
		if err != nil {
			in.Close()
			continue
		}
		alive := &atomic.Bool{}
		alive.Store(true)
		c.mu.Lock()
		c.open, c.all = append(c.open, alive), append(c.all, in, out)
		c.mu.Unlock()
		go forward(in, out, alive)
		go forward(out, in, alive)
	}
}

func forward(from, to net.Conn, alive *atomic.Bool) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if alive.Load() {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
}

// stopForwarding stops all open connections, and returns their number.
func (c *halfOpenProxy) stopForwarding() (connections int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, alive := range c.open {
		alive.Store(false)
	}
	return len(c.open)
}

// TestHalfOpenTCP checks, over real TCP, TLS and HTTP/2, that the lease is renewed over a new connection before it
// expires.
func TestHalfOpenTCP(t *testing.T) {
	api := &fakeAPI{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp, err := api.RoundTrip(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
		w.WriteHeader(resp.StatusCode)
		io.Copy(w, resp.Body) //nolint:errcheck // the client may be gone
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	proxy := &halfOpenProxy{Listener: front, backend: server.Listener.Addr().String()}
	go proxy.serve()
	defer func() {
		front.Close()
		proxy.mu.Lock()
		defer proxy.mu.Unlock()
		for _, c := range proxy.all {
			c.Close()
		}
	}()

	b, err := newBeat(&rest.Config{
		Host:            "https://" + front.Addr().String(),
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}, "test")
	if err != nil {
		t.Fatal(err)
	}
	node := existing(corev1.ConditionTrue)
	l := &lease{
		name:     testNode,
		duration: 4 * time.Second,
		beat:     b,
		node:     func() *corev1.Node { return node },
		log:      slog.New(slog.DiscardHandler),
		renewed:  time.Now(),
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { defer close(done); l.run(ctx) }()
	defer func() { cancel(); <-done }()

	first := awaitRenewal(t, api, time.Time{}, 3*time.Second)
	if n := proxy.stopForwarding(); n != 1 {
		t.Fatalf("got %d connections for heartbeats, want 1", n)
	}
	second := awaitRenewal(t, api, first, 4*time.Second)
	t.Logf("renewed %v after the first renewal", second.Sub(first))
	if err := l.health(time.Now()); err != nil {
		t.Error(err)
	}
}

// awaitRenewal waits until the lease was renewed later than before.
func awaitRenewal(t *testing.T, api *fakeAPI, before time.Time, limit time.Duration) time.Time {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if l := api.getLease(); l != nil && l.Spec.RenewTime.After(before.Add(time.Millisecond)) {
			return l.Spec.RenewTime.Time
		}
	}
	t.Fatalf("the lease was not renewed within %v", limit)
	return time.Time{}
}
