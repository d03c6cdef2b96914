package node

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/pipe"
)

// halfOpenNetwork is a network without sockets, so that it works on the clock of synctest. It can stop its open
// connections as a firewall does that has lost their state: what one end writes is lost without an error, and the
// other end reads nothing. New connections work.
type halfOpenNetwork struct {
	*pipe.Listener

	mu   sync.Mutex
	open []*atomic.Bool // one for each connection: true while it forwards bytes
}

// dial is the client's side.
func (n *halfOpenNetwork) dial(ctx context.Context, network, address string) (net.Conn, error) {
	far, err := n.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	client, near := net.Pipe()
	alive := &atomic.Bool{}
	alive.Store(true)
	go forward(near, far, alive)
	go forward(far, near, alive)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open = append(n.open, alive)
	return client, nil
}

// forward copies bytes while alive is true, and drops them after that. It closes to when from is closed.
func forward(from, to net.Conn, alive *atomic.Bool) {
	defer to.Close()
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
func (n *halfOpenNetwork) stopForwarding() (connections int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, alive := range n.open {
		alive.Store(false)
	}
	return len(n.open)
}

// TestLongOutageIsLoggedOnce checks that the log of a long outage of the API server has only its beginning and its end.
func TestLongOutageIsLoggedOnce(t *testing.T) {
	var log strings.Builder
	l := &lease{duration: 40 * time.Second, renew: (&fakeAPI{}).renew, log: slog.New(slog.NewTextHandler(&log, nil))}
	for range 1000 {
		l.note(errors.New("connection refused"))
	}
	l.note(nil)
	if got, want := strings.Count(log.String(), "\n"), 3; got != want {
		t.Errorf("got %d lines, want %d:\n%s", got, want, &log)
	}
}

// TestHalfOpenTLS checks, over TLS and HTTP/2, that the lease is renewed over a new connection before it
// expires.
func TestHalfOpenTLS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, network := &fakeAPI{}, &halfOpenNetwork{Listener: pipe.Listen()}
		server := &httptest.Server{
			Listener: network,
			Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				resp, err := api.RoundTrip(r)
				if err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
					return
				}
				w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
				w.WriteHeader(resp.StatusCode)
				io.Copy(w, resp.Body) //nolint:errcheck // the client may be gone
			})},
			EnableHTTP2: true,
		}
		server.StartTLS()
		defer server.Close()
		transport := client.NewTransport(time.Second)
		err := transport.Use(&rest.Config{
			Host:            "https://api.example.com",
			TLSClientConfig: rest.TLSClientConfig{Insecure: true},
			Dial:            network.dial,
		})
		if err != nil {
			t.Fatal(err)
		}
		b, err := client.New(transport.Config(""), -1, 0, "test")
		if err != nil {
			t.Fatal(err)
		}
		node := existing(corev1.ConditionTrue)
		l := &lease{
			name:     testNode,
			duration: 40 * time.Second,
			beat:     b,
			renew:    transport.Renew,
			node:     func() *corev1.Node { return node },
			deleted:  func() bool { return false },
			log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); l.run(ctx) }()
		defer func() { cancel(); <-done }()

		time.Sleep(time.Second)
		first := api.getLease()
		if first == nil {
			t.Fatal("got no lease, want one")
		}
		if n := network.stopForwarding(); n != 1 {
			t.Fatalf("got %d connections for heartbeats, want 1", n)
		}
		time.Sleep(l.duration)
		if age := time.Since(api.getLease().Spec.RenewTime.Time); age >= l.duration {
			t.Errorf("time since the last renewal of the lease: got %s, want less than its duration", age)
		}
		if n := network.stopForwarding(); n != 2 {
			t.Errorf("got %d connections for heartbeats, want a second one", n)
		}
	})
}
