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
	"strconv"
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

// serveHealthz serves /healthz, to clients with a certificate of ca and to all others.
func serveHealthz(t *testing.T, ca *authority) *addressed {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, ca.pem(), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Config{ClientCAFile: file, Anonymous: true, AlwaysAllow: true,
		Metrics: noMetrics{},
		Log:     slog.New(slog.DiscardHandler),
		TLS:     &tls.Config{Certificates: []tls.Certificate{*ca.issue(t, "node-1", nil, nil)}},
		Mounts:  []server.Mount{{Path: "/healthz", Handler: echo}}})
	if err != nil {
		t.Fatal(err)
	}
	l := &addressed{Listener: pipe.Listen()}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() { _ = s.Serve(ctx, l) }()
	return l
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
	next(t, client)
	return client
}

// next sends the beginning of a request.
func next(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: node-1\r\n"); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
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
// those from one network neither close a connection that was authorized nor one from another network.
func TestPendingConnectionsAreBounded(t *testing.T) {
	for name, addresses := range map[string]struct{ authorized, slow, bad string }{
		"one address":      {"192.0.2.1", "192.0.2.2", "192.0.2.3"},
		"one IPv6 network": {"2001:db8:0:1::1", "2001:db8:0:2::1", "2001:db8:0:3::%x"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := serveHealthz(t, newAuthority(t, "client-ca"))
				authorized := l.dial(t, addresses.authorized)
				complete(t, authorized)
				slow := l.dial(t, addresses.slow)
				i := 0
				open := hold(300, func() net.Conn {
					i++
					return l.dial(t, strings.Replace(addresses.bad, "%x", strconv.FormatInt(int64(i), 16), 1))
				})
				synctest.Wait()
				if got := open.Load(); got < 1 || got > 255 {
					t.Errorf("got %d open connections from one network, want 1 to 255", got)
				}
				complete(t, slow)
				next(t, authorized)
				complete(t, authorized)
			})
		})
	}
}

// TestHeadersAreBounded checks that clients which send long headers do not take much memory, even those with a
// certificate and with rights, and that they do not close the connection of a client that sends short ones.
func TestHeadersAreBounded(t *testing.T) {
	for name, authorized := range map[string]bool{"first request": false, "second request": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ca := newAuthority(t, "client-ca")
				l := serveHealthz(t, ca)
				cert := ca.issue(t, "monitoring", nil, nil)
				dial := func() net.Conn { return begin(t, l.connect(t, "192.0.2.1"), cert) }
				honest := dial()
				long := "X: " + strings.Repeat("x", 200<<10)
				open := hold(90, func() net.Conn {
					c := dial()
					if authorized {
						complete(t, c)
						next(t, c)
					}
					_, _ = io.WriteString(c, long) // fails if the server closes this connection
					return c
				})
				synctest.Wait()
				if got := open.Load(); got < 1 || got > 82 {
					t.Errorf("got %d open connections with 200 KiB of headers, want 1 to 82, which makes 16 MiB", got)
				}
				complete(t, honest)
			})
		})
	}
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
	many := map[string]string{}
	for i := range 300 {
		many[fmt.Sprint("X", i)] = ""
	}
	if code, _ := s.ask(c, http.MethodGet, "/healthz", many); code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("300 headers: got status %d, want 431", code)
	}
}

// TestBurst checks that no connection of a client with a valid certificate is closed, as those of the API server which
// passes on many followed logs at once; but that there is a bound for those that do not end the handshake.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(t, "client-ca")
		l := serveHealthz(t, ca)
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
		if got := open.Load(); got != 1024-500 {
			t.Errorf("got %d connections without a handshake beside 500 idle ones, want 524", got)
		}
		for _, c := range all {
			next(t, c)
			complete(t, c)
		}
	})
}
