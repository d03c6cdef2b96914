package server_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/test/pipe"
)

// addressed is a listener whose connections come from the address that dial sets.
type addressed struct {
	*pipe.Listener
	from netip.AddrPort
}

type addressedConn struct {
	net.Conn
	from netip.AddrPort
}

func (c *addressedConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.from) }

func (l *addressed) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &addressedConn{c, l.from}, nil
}

// dial makes a TLS connection from an address and sends the beginning of a request on it.
func (l *addressed) dial(t *testing.T, from string) net.Conn {
	t.Helper()
	return begin(t, l.connect(t, from), nil)
}

// connect makes a connection from an address.
func (l *addressed) connect(t *testing.T, from string) net.Conn {
	t.Helper()
	l.from = netip.AddrPortFrom(netip.MustParseAddr(from), 1024)
	c, err := l.Dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	synctest.Wait()
	return c
}

// begin makes the handshake of TLS, with a certificate if it is not nil, and sends the beginning of a request.
func begin(t *testing.T, c net.Conn, cert *tls.Certificate) net.Conn {
	t.Helper()
	cfg := &tls.Config{InsecureSkipVerify: true}
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	client := tls.Client(c, cfg)
	if _, err := io.WriteString(client, "GET /healthz HTTP/1.1\r\nHost: node-1\r\n"); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return client
}

// hold opens n connections and reads what comes from them. It returns how many of them are open.
func hold(n int, dial func() net.Conn) *atomic.Int32 {
	open := &atomic.Int32{}
	for range n {
		c := dial()
		open.Add(1)
		go func() {
			defer open.Add(-1)
			_, _ = io.Copy(io.Discard, c)
		}()
	}
	return open
}

// TestPendingConnectionsAreBounded checks that clients which do not complete a request have few connections, and that
// those from one address neither close a connection that was authorized nor one from another address.
func TestPendingConnectionsAreBounded(t *testing.T) {
	serving := newAuthority(t, "client-ca").issue(t, "node-1", nil, nil)
	synctest.Test(t, func(t *testing.T) {
		s, err := server.New(server.Config{Anonymous: true, AlwaysAllow: true, Log: slog.New(slog.DiscardHandler),
			TLS:    &tls.Config{Certificates: []tls.Certificate{*serving}},
			Mounts: []server.Mount{{Path: "/healthz", Handler: echo}}})
		if err != nil {
			t.Fatal(err)
		}
		l := &addressed{Listener: pipe.Listen()}
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		go func() { _ = s.Serve(ctx, l) }()

		authorized := l.dial(t, "192.0.2.1")
		complete(t, authorized)
		slow := l.dial(t, "192.0.2.2")
		open := hold(300, func() net.Conn { return l.dial(t, "192.0.2.3") })
		synctest.Wait()
		if got := open.Load(); got < 1 || got > 255 {
			t.Errorf("got %d open connections from one address, want 1 to 255", got)
		}
		complete(t, slow)
		if _, err := fmt.Fprint(authorized, "GET /healthz HTTP/1.1\r\nHost: node-1\r\n"); err != nil {
			t.Error(err)
		}
		complete(t, authorized)
	})
}

// complete sends the end of a request and reads the answer.
func complete(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.WriteString(c, "\r\n"); err != nil {
		t.Error(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Errorf("got %v, want an answer", err)
		return
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("got %s, %v, want 200", resp.Status, err)
	}
}

// TestNoHTTP2 checks that a client cannot agree on HTTP/2: its requests would share one connection and have no bound.
func TestNoHTTP2(t *testing.T) {
	s := newStand(t, nil)
	cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}
	c, err := tls.Dial("tcp", s.addr.String(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.ConnectionState().NegotiatedProtocol; got != "http/1.1" {
		t.Errorf("got protocol %q, want http/1.1", got)
	}
}

// TestLargeHeadersAreRefused checks that the command of an exec may be long, and that the headers of a request are
// bounded.
func TestLargeHeadersAreRefused(t *testing.T) {
	s := newStand(t, func(cfg *server.Config) { cfg.Anonymous, cfg.AlwaysAllow = true, true })
	c := s.client(nil)
	if code, _ := s.ask(c, http.MethodGet, "/healthz?command="+strings.Repeat("x", 200<<10), nil); code != http.StatusOK {
		t.Errorf("200 KiB: got status %d, want 200", code)
	}
	large := map[string]string{"X": strings.Repeat("x", 512<<10)}
	if code, _ := s.ask(c, http.MethodGet, "/healthz", large); code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("512 KiB: got status %d, want 431", code)
	}
}

// TestBurst checks that no connection of a client with a valid certificate is closed, as those of the API server which
// passes on many followed logs at once; but that there is a bound for those that do not end the handshake.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(t, "client-ca")
		file := filepath.Join(t.TempDir(), "ca.crt")
		if err := os.WriteFile(file, ca.pem(), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := server.New(server.Config{ClientCAFile: file, AlwaysAllow: true, Log: slog.New(slog.DiscardHandler),
			TLS:    &tls.Config{Certificates: []tls.Certificate{*ca.issue(t, "node-1", nil, nil)}},
			Mounts: []server.Mount{{Path: "/healthz", Handler: echo}}})
		if err != nil {
			t.Fatal(err)
		}
		l := &addressed{Listener: pipe.Listen()}
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		go func() { _ = s.Serve(ctx, l) }()

		cert := ca.issue(t, "apiserver", nil, nil)
		all := make([]net.Conn, 500)
		for i := range all {
			all[i] = l.connect(t, "192.0.2.1")
		}
		for i, c := range all {
			all[i] = begin(t, c, cert)
		}
		for _, c := range all {
			complete(t, c)
		}
		open := hold(1100, func() net.Conn { return l.connect(t, "192.0.2.2") })
		synctest.Wait()
		if got := open.Load(); got != 1024 {
			t.Errorf("got %d connections without a handshake, want 1024", got)
		}
	})
}
