package server

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodelet/nodelet/test/waittest"
)

// TestRefusedUpgradeLeavesNoTunnel checks that a runtime that does not upgrade leaves neither a tunnel behind
// (CVE-2018-1002105) nor sends the client anywhere (CVE-2018-1002102, CVE-2020-8559), and it never sees what let the
// client in.
func TestRefusedUpgradeLeavesNoTunnel(t *testing.T) {
	for _, c := range []struct {
		answer, want int
		text         string
	}{
		{http.StatusFound, http.StatusBadGateway, ""},
		{http.StatusTemporaryRedirect, http.StatusBadGateway, ""},
		{http.StatusOK, http.StatusBadGateway, "gold"},
		{http.StatusForbidden, http.StatusForbidden, "no such token"},
		{http.StatusInternalServerError, http.StatusInternalServerError, "broken"},
	} {
		asked := 0
		runtime := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked++
			for _, h := range []string{"Authorization", "Cookie"} {
				if r.Header.Get(h) != "" {
					t.Errorf("header %s at the runtime: got it, want it removed", h)
				}
			}
			w.Header().Set("Location", "https://192.0.2.1/elsewhere")
			w.WriteHeader(c.answer)
			_, _ = io.WriteString(w, c.text)
		}))
		target, _ := url.Parse(runtime.URL + "/exec/token")
		node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			err := (&pipe{target: target, log: slog.New(slog.DiscardHandler)}).serve(w, r)
			if status, ok := errors.AsType[*Error](err); !ok || status.Code != c.want {
				t.Errorf("runtime answers %d: got %v, want code %d", c.answer, err, c.want)
			}
			http.Error(w, err.Error(), c.want)
		}))
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, node.URL, nil)
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "SPDY/3.1")
		req.Header.Set("Authorization", "Bearer secret")
		req.Header.Set("Cookie", "secret")
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.want || resp.Header.Get("Location") != "" || asked != 1 {
			t.Errorf("runtime answers %d: the client got %d, Location %q, after %d questions", c.answer, resp.StatusCode,
				resp.Header.Get("Location"), asked)
		}
		if c.want != http.StatusBadGateway && !strings.Contains(string(body), c.text) {
			t.Errorf("the client received %q, want %q in it", body, c.text)
		}
		node.Close()
		runtime.Close()
	}
}

// TestUsedStreamStays checks that a stream with a byte in each idle time stays, however long, and ends when there is
// none any more.
func TestUsedStreamStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = time.Minute
		user, client := net.Pipe()
		runtime, backend := net.Pipe()
		ended := make(chan time.Time, 1)
		go func() {
			p := &pipe{idle: idle}
			p.join(t.Context(), side{client, bufio.NewReader(client)}, side{backend, bufio.NewReader(backend)})
			ended <- time.Now()
		}()
		var last time.Time
		for i := range 10 {
			for from, to := range map[net.Conn]net.Conn{user: runtime, runtime: user} {
				time.Sleep(idle - 1)
				if _, err := from.Write([]byte{1}); err != nil {
					t.Fatalf("byte %d: got %v, want it passed", i, err)
				}
				if _, err := to.Read(make([]byte, 1)); err != nil {
					t.Fatalf("byte %d: got %v, want it passed", i, err)
				}
				last = time.Now()
			}
		}
		if took := (<-ended).Sub(last); took < idle || took > 2*idle {
			t.Errorf("got the end %s after the last byte, want it between %s and %s", took, idle, 2*idle)
		}
	})
}

// deaf is a connection whose other end takes nothing any more, although it has more to say.
type deaf struct{ net.Conn }

func (deaf) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// TestRestOfOutput checks that a slow client gets the rest of the output of a runtime that has ended the stream, while
// it still sends, and that the stream ends soon when nothing comes any more.
func TestRestOfOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		user, client := net.Pipe()
		runtime, backend := net.Pipe()
		ended := make(chan time.Time, 1)
		go func() {
			p := &pipe{}
			p.join(t.Context(), side{client, bufio.NewReader(client)}, side{deaf{backend}, bufio.NewReader(backend)})
			ended <- time.Now()
		}()
		const parts = 100
		go func() {
			for range parts {
				_, _ = runtime.Write(make([]byte, chunk))
			}
		}()
		for i := range parts {
			if _, err := user.Write([]byte("ping")); err != nil {
				t.Fatalf("part %d: got %v, want what the client sends to be taken", i, err)
			}
			time.Sleep(lingerTime - 1)
			if _, err := io.ReadFull(user, make([]byte, chunk)); err != nil {
				t.Fatalf("part %d: got %v, want it passed", i, err)
			}
		}
		last := time.Now()
		if took := (<-ended).Sub(last); took > 2*lingerTime {
			t.Errorf("got the end %s after the last part, want it after at most %s", took, 2*lingerTime)
		}
	})
}

// halved is a connection that says when it is read, and when the end has been sent.
type halved struct {
	*net.TCPConn
	read, ended chan struct{}
}

func (c *halved) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if err == nil {
		c.read <- struct{}{}
	}
	return n, err
}

func (c *halved) CloseWrite() error {
	defer close(c.ended)
	return c.TCPConn.CloseWrite()
}

// TestRestInKernel checks that a client that sends pings gets what the kernel holds of the output when the runtime has
// ended the stream.
func TestRestInKernel(t *testing.T) {
	user, accepted := connected(t)
	_ = user.SetReadBuffer(4 << 10)
	client := &halved{accepted, make(chan struct{}, 10), make(chan struct{})}
	runtime, backend := net.Pipe()
	left := make(chan struct{})
	go func() {
		defer close(left)
		defer client.Close()
		(&pipe{}).join(t.Context(), side{client, bufio.NewReader(client)}, side{deaf{backend}, bufio.NewReader(backend)})
	}()
	output := make([]byte, 32<<10)
	if _, err := runtime.Write(output); err != nil {
		t.Fatal(err)
	}
	runtime.Close()
	<-client.ended
	for i := range 5 {
		if _, err := user.Write([]byte("ping")); err != nil {
			t.Fatalf("ping %d: got %v, want it taken", i, err)
		}
		select {
		case <-client.read:
		case <-left:
			t.Fatalf("ping %d: got the end of the stream before the client had the output", i)
		}
	}
	if got, err := io.ReadAll(user); err != nil || len(got) != len(output) {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, len(output))
	}
	user.Close()
	<-left
}

// connected returns both ends of a TCP connection.
func connected(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// TestUnsent checks that what a client has not taken yet is known below TLS.
func TestUnsent(t *testing.T) {
	user, accepted := connected(t)
	server := tls.Server(&pendingConn{Conn: accepted}, &tls.Config{})
	go func() {
		for {
			if _, err := accepted.Write(make([]byte, chunk)); err != nil {
				return
			}
		}
	}()
	await(t, "some", func() bool { return unsent(server) > 0 })
	_ = accepted.SetWriteDeadline(time.Now())
	go func() { _, _ = io.Copy(io.Discard, user) }()
	await(t, "no", func() bool { return unsent(server) == 0 })
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(waittest.Limit); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %s unsent bytes", what)
		}
	}
}

// TestLinger checks that a stream in which something has moved lingers no longer than others.
func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, cut := time.Now(), make(chan struct{})
		defer watchIdle(lingerTime, func() int64 { return 1 }, func() { close(cut) })()
		<-cut
		if took := time.Since(began); took != lingerTime {
			t.Errorf("got the end after %s, want it after %s", took, lingerTime)
		}
	})
}

// TestClientThatHasGone checks that what a runtime still says to a client that has gone does not keep the stream.
func TestClientThatHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		user, client := net.Pipe()
		runtime, backend := net.Pipe()
		go func() {
			for {
				if _, err := runtime.Write(make([]byte, chunk)); err != nil {
					return
				}
			}
		}()
		user.Close()
		began := time.Now()
		(&pipe{}).join(t.Context(), side{client, bufio.NewReader(client)}, side{backend, bufio.NewReader(backend)})
		if took := time.Since(began); took > lingerTime {
			t.Errorf("got the end after %s, want it after at most %s", took, lingerTime)
		}
		runtime.Close()
	})
}
