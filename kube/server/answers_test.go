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
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/test/pipe"
)

// large is an answer that no buffer of a connection holds.
var large = make([]byte, 32<<20)

// get sends a request for a path over a connection of its own, from an address of this machine, and reads of the answer
// only the beginning. Without a certificate it is for the read-only port.
func (s *stand) get(path, from string, at netip.AddrPort, cert *tls.Certificate) *http.Response {
	s.t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := dialer.Dial("tcp", at.String())
	if err != nil {
		s.t.Fatal(err)
	}
	below := c
	s.t.Cleanup(func() { below.Close() })
	if cert != nil {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*cert}})
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: node\r\n\r\n", path); err != nil {
		s.t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer
}

// TestLargeAnswersAreBounded checks that clients that do not read large answers get no more than some, those of one
// network fewer, and that others get theirs, whatever those of the read-only port have.
func TestLargeAnswersAreBounded(t *testing.T) {
	readOnly := freeAddr(t)
	s := newStand(t, func(c *server.Config) {
		c.ReadOnly = readOnly
		c.Mounts = []server.Mount{{Path: "/large", Large: true, Access: []string{"metrics"}, ReadOnly: true,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(large) })}}
	})
	waitFor(t, readOnly)
	root := s.ca.issue(t, "root", []string{"system:masters"}, nil)
	for at, cert := range map[netip.AddrPort]*tls.Certificate{readOnly: nil, s.addr: root} {
		four := func(from string) {
			for range 4 {
				if answer := s.get("/large", from, at, cert); answer.StatusCode != http.StatusOK {
					t.Fatalf("to %s: got %s, want 200", from, answer.Status)
				}
			}
		}
		four("127.0.0.1")
		refused := s.get("/large", "127.0.0.1", at, cert)
		if refused.StatusCode != http.StatusTooManyRequests || refused.Header.Get("Retry-After") == "" {
			t.Errorf("a fifth answer to a network: got %s, want 429 with Retry-After", refused.Status)
		}
		four("127.0.0.2")
		other := s.get("/large", "127.0.0.3", at, cert)
		if n, err := io.Copy(io.Discard, other.Body); err != nil || n != int64(len(large)) {
			t.Errorf("another network: got %d bytes, %v, want the answer", n, err)
		}
	}
}

// TestSlowReaderOfLargeAnswer checks that a client that reads slowly gets all of an answer, and that one that stops
// reading does not keep it.
func TestSlowReaderOfLargeAnswer(t *testing.T) {
	const size = 10 << 20
	for _, stops := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ended := make(chan time.Time, 1)
			mount := server.Mount{Path: "/large", Large: true,
				Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					time.Sleep(time.Hour) // the measuring
					_, _ = w.Write(large[:size])
					ended <- time.Now()
				})}
			s, err := server.New(server.Config{Anonymous: true, AlwaysAllow: true, Mounts: []server.Mount{mount},
				Metrics: noMetrics{}, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			l := pipe.Listen()
			srv := &http.Server{Handler: s.Handler()}
			go func() { _ = srv.Serve(l) }()
			defer srv.Close()
			client, err := l.Dial(context.Background(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			_, _ = io.WriteString(client, "GET /large HTTP/1.0\r\n\r\n")
			var n int64
			for last := time.Now(); ; last = time.Now() {
				k, err := io.CopyN(io.Discard, client, 64<<10)
				if n += k; err != nil {
					break
				}
				if stops && n > size/2 {
					if took := (<-ended).Sub(last); took > time.Minute {
						t.Errorf("a client that reads no more: got the end after %s, want it after a minute", took)
					}
					return
				}
				time.Sleep(time.Second)
			}
			if n < size {
				t.Errorf("a slow client: got %d bytes, want %d and the headers", n, size)
			}
		})
	}
}
