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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/test/pipe"
)

// large is an answer that no buffer of a connection holds.
var large = make([]byte, 32<<20)

// get sends a request for a path over a connection of its own, from an address of this machine, and reads of the answer
// only the beginning.
func (s *stand) get(path, from string, cert *tls.Certificate) *http.Response {
	s.t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := tls.DialWithDialer(dialer, "tcp", s.addr.String(),
		&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*cert}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.NetConn().Close() })
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: node\r\n\r\n", path); err != nil {
		s.t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer
}

// TestLargeAnswersAreBounded checks that clients that do not read large answers get no more than some, and that those
// of other networks get theirs.
func TestLargeAnswersAreBounded(t *testing.T) {
	var inside atomic.Int64
	var most int64
	s := newStand(t, func(c *server.Config) {
		c.Mounts = []server.Mount{{Path: "/large", Large: true, Access: []string{"metrics"},
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				inside.Add(1)
				defer inside.Add(-1)
				_, _ = w.Write(large)
			})}}
	})
	root := s.ca.issue(t, "root", []string{"system:masters"}, nil)
	var refused *http.Response
	for range 100 {
		answer := s.get("/large", "127.0.0.1", root)
		most = max(most, inside.Load())
		if answer.StatusCode != http.StatusOK {
			refused = answer
			break
		}
	}
	if refused == nil || refused.StatusCode != http.StatusTooManyRequests || refused.Header.Get("Retry-After") == "" {
		t.Errorf("got %v after %d answers that nobody reads, want status 429 with Retry-After", refused, most)
	}
	if most < 4 || most > 16 {
		t.Errorf("got %d answers at a time, want some, but no more than 16", most)
	}
	other := s.get("/large", "127.0.0.2", root)
	if n, err := io.Copy(io.Discard, other.Body); err != nil || n != int64(len(large)) {
		t.Errorf("another network: got %d bytes, %v, want the answer", n, err)
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
				Log: slog.New(slog.DiscardHandler)})
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
