package server_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/test/waittest"
)

// backend is a runtime's streaming server: it upgrades and then does as script says, or answers otherwise.
type backend struct {
	t        *testing.T
	listener net.Listener
	script   func(c *net.TCPConn, in *bufio.Reader)
	open     sync.WaitGroup

	mu     sync.Mutex
	answer string
	seen   []*http.Request
}

const upgraded = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n" +
	"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"

func newRuntime(t *testing.T, script func(*net.TCPConn, *bufio.Reader)) *backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &backend{t: t, listener: l, answer: upgraded, script: script}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.open.Go(func() { r.serve(c.(*net.TCPConn)) })
		}
	}()
	t.Cleanup(func() { l.Close(); r.open.Wait() })
	return r
}

func (r *backend) serve(c *net.TCPConn) {
	defer c.Close()
	in := bufio.NewReader(c)
	req, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	r.mu.Lock()
	r.seen = append(r.seen, req)
	answer := r.answer
	r.mu.Unlock()
	_, _ = io.WriteString(c, answer)
	if answer == upgraded && r.script != nil {
		r.script(c, in)
	}
}

// answerWith makes the server answer the next requests with text.
func (r *backend) answerWith(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = text
}

func (r *backend) url() string { return "http://" + r.listener.Addr().String() + "/exec/token" }

// dial sends a stream request over a raw connection, early together with the headers, and returns the connection with
// the response. On a busy machine the server may not read the request within its limit, and closes the connection: then
// dial tries again.
func (s *stand) dial(path, early string, cert *tls.Certificate) (*http.Response, *tls.Conn, *bufio.Reader) {
	s.t.Helper()
	for end := time.Now().Add(waittest.Limit); ; {
		began := time.Now()
		resp, c, in, err := s.dialOnce(path, early, cert)
		took := time.Since(began)
		switch {
		case err == nil:
			return resp, c, in
		case took < server.HeaderTime || time.Now().After(end):
			s.t.Fatalf("after %s: got no answer to %s: %v; the server's log:\n%s", took, path, err, s.log)
		}
	}
}

func (s *stand) dialOnce(path, early string, cert *tls.Certificate) (*http.Response, *tls.Conn, *bufio.Reader, error) {
	c, err := tls.Dial("tcp", s.addr.String(), &tls.Config{
		InsecureSkipVerify: true,
		Certificates:       []tls.Certificate{*cert},
	})
	if err != nil {
		return nil, nil, nil, err
	}
	s.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(waittest.Limit)); err != nil {
		return nil, nil, nil, err
	}
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"+
		"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n"+
		"Authorization: Bearer s3cr3t\r\nCookie: s3cr3t\r\nContent-Length: 0\r\n\r\n%s", path, early)
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	return resp, c, in, err
}

// TestStreamPassesBytes checks that everything passes both ways, what came early included, and each side's end
// reaches the other only after all that was sent before it.
func TestStreamPassesBytes(t *testing.T) {
	const size = 3 << 20
	var got [32]byte
	finished := make(chan struct{})
	r := newRuntime(t, func(c *net.TCPConn, in *bufio.Reader) {
		defer close(finished)
		h := sha256.New()
		_, _ = io.Copy(h, in) // until the client's half is closed
		h.Sum(got[:0])
		_, _ = c.Write(bytes.Repeat([]byte("answer "), 100_000))
	})
	s := newStand(t, nil)
	s.agent.stream = r.url()
	root := s.ca.issue(t, "root", []string{"system:masters"}, nil)
	resp, c, in := s.dial("/exec/ns/pod/app?command=sh&command=-c&command=a+b&input=1&output=1&error=1", "early", root)
	if resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "SPDY/3.1" ||
		resp.Header.Get("X-Stream-Protocol-Version") != "v4.channel.k8s.io" {
		t.Fatalf("got %s %v, want 101 and the runtime's headers", resp.Status, resp.Header)
	}
	data := make([]byte, size)
	_, _ = rand.Read(data)
	if _, err := c.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	back, err := io.ReadAll(in)
	if err != nil || len(back) != 700_000 {
		t.Errorf("got %d bytes, %v, want 700000", len(back), err)
	}
	<-finished
	if want := sha256.Sum256(append([]byte("early"), data...)); got != want {
		t.Error("got other bytes than were sent, want the same")
	}
	req := r.seen[0]
	if req.URL.Path != "/exec/token" || req.URL.RawQuery != "" || req.Method != "POST" ||
		req.Header.Get("Upgrade") != "SPDY/3.1" {
		t.Errorf("request to the runtime: got %s %s %v, want POST /exec/token with the upgrade",
			req.Method, req.URL, req.Header)
	}
	if text := fmt.Sprint(req.Header); strings.Contains(text, "s3cr3t") {
		t.Errorf("request to the runtime: got a credential, want none: %s", text)
	}
	if asked := s.agent.wasAsked(); len(asked) != 1 ||
		asked[0] != `exec ns/pod//app ["sh" "-c" "a b"] {Stdin:true Stdout:true Stderr:true TTY:false}` {
		t.Errorf("request to the agent: got %q, want the exec of the client", asked)
	}
}

// TestStreamNeedsUpgrade checks that there is no tunnel and no redirect without an upgrade by the runtime, and that the
// client gets its error.
func TestStreamNeedsUpgrade(t *testing.T) {
	r := newRuntime(t, nil)
	s := newStand(t, nil)
	s.agent.stream = r.url()
	root := s.ca.issue(t, "root", []string{"system:masters"}, nil)
	for answer, want := range map[string]int{
		"HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\nunknown":                                   404,
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok":                                               502,
		"HTTP/1.1 302 Found\r\nLocation: https://192.0.2.1/secrets\r\nContent-Length: 0\r\n\r\n":       502,
		"HTTP/1.1 307 Temporary Redirect\r\nLocation: /run/other/pod/app\r\nContent-Length: 0\r\n\r\n": 502,
		"nonsense\r\n\r\n": 500,
		"":                 500,
	} {
		r.answerWith(answer)
		resp, c, _ := s.dial("/exec/ns/pod/app?output=1", "", root)
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		if resp.StatusCode != want || resp.Header.Get("Location") != "" {
			t.Errorf("%.30q: got %s %q, want %d", answer, resp.Status, text, want)
		}
		c.Close()
	}
	if code, body := s.ask(s.client(root), "GET", "/exec/ns/pod/app?output=1", nil); code != 400 ||
		!strings.Contains(body, "Upgrade request required") {
		t.Errorf("got %d %q, want 400 Upgrade request required", code, body)
	}
	s.agent.stream = "http://127.0.0.1:1/closed"
	if resp, _, _ := s.dial("/attach/ns/pod/app?output=1", "", root); resp.StatusCode != 500 {
		t.Errorf("port without a server: got status %s", resp.Status)
	}
	s.agent.err = server.NotFound("no such pod")
	if resp, _, _ := s.dial("/portForward/ns/pod", "", root); resp.StatusCode != 404 {
		t.Errorf("no pod: got %s, want 404", resp.Status)
	}
}

// TestStreamsEnd checks that streams end with the client, the runtime and the server, and leave nothing behind.
func TestStreamsEnd(t *testing.T) {
	gone := make(chan struct{}, 10)
	untilEnd := func(_ *net.TCPConn, in *bufio.Reader) {
		_, _ = io.Copy(io.Discard, in)
		gone <- struct{}{}
	}
	r := newRuntime(t, untilEnd)
	s := newStand(t, nil)
	s.agent.stream = r.url()
	root := s.ca.issue(t, "root", []string{"system:masters"}, nil)
	_, c, _ := s.dial("/exec/ns/pod/app?output=1", "", root)
	c.Close()
	<-gone
	r.script = func(c *net.TCPConn, _ *bufio.Reader) { _, _ = io.WriteString(c, "bye") }
	_, _, in := s.dial("/exec/ns/pod/app?output=1", "", root)
	if text, err := io.ReadAll(in); string(text) != "bye" || err != nil {
		t.Errorf("got %q, %v, want bye", text, err)
	}
	r.script = untilEnd
	_, _, in = s.dial("/exec/ns/pod/app?output=1", "", root)
	s.end()
	<-gone
	if text, err := io.ReadAll(in); len(text) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the end of the server: got %q, %v, want the end of the stream", text, err)
	}
}

// TestThousandsOfStreams checks that no goroutine and no file stays of many streams that the client, the runtime or a
// broken connection has ended.
func TestThousandsOfStreams(t *testing.T) {
	streams := 3000
	if testing.Short() {
		streams = 300
	}
	r := newRuntime(t, func(c *net.TCPConn, in *bufio.Reader) {
		if who, _ := in.ReadByte(); who != 'r' { // the runtime ends it, or else the client does
			_, _ = io.Copy(io.Discard, in)
		}
	})
	s := newStand(t, nil)
	s.agent.stream = r.url()
	root := s.ca.issue(t, "root", []string{"system:masters"}, nil)
	open := func() (goroutines, files int) {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return runtime.NumGoroutine(), len(all)
	}
	wasRunning, wereOpen := open()
	for i := range streams {
		_, c, in := s.dial("/exec/ns/pod/app?input=1&output=1", "rcx"[i%3:i%3+1], root)
		switch i % 3 {
		case 0:
			_, _ = io.Copy(io.Discard, in)
		case 2:
			_ = c.NetConn().(*net.TCPConn).SetLinger(0)
		}
		c.Close()
	}
	const few = 10 // what the program does besides
	for end := time.Now().Add(waittest.Limit); ; time.Sleep(10 * time.Millisecond) {
		running, files := open()
		if running <= wasRunning+few && files <= wereOpen+few {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %d streams: got %d goroutines and %d files, want %d and %d as before", streams, running,
				files, wasRunning, wereOpen)
		}
	}
}

// TestIdleStreamEnds checks that a stream without bytes ends after the configured time.
func TestIdleStreamEnds(t *testing.T) {
	r := newRuntime(t, func(c *net.TCPConn, in *bufio.Reader) { _, _ = io.Copy(c, in) })
	s := newStand(t, func(c *server.Config) { c.Streams.Idle = 50 * time.Millisecond })
	s.agent.stream = r.url()
	root := s.ca.issue(t, "root", []string{"system:masters"}, nil)
	_, _, in := s.dial("/exec/ns/pod/app?output=1", "", root)
	if text, err := io.ReadAll(in); len(text) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %q, %v, want the end of the stream", text, err)
	}
}

// TestPortOptions checks that the ports of a WebSocket are in the query.
func TestPortOptions(t *testing.T) {
	r := newRuntime(t, nil)
	r.answerWith("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
	s := newStand(t, nil)
	s.agent.stream = r.url()
	c := s.client(s.ca.issue(t, "root", []string{"system:masters"}, nil))
	h := map[string]string{"Connection": "Upgrade", "Upgrade": "websocket"}
	for path, want := range map[string]int{
		"/portForward/ns/pod?port=80&port=81,82": 403,
		"/portForward/ns/pod/uid?port=80":        403,
		"/portForward/ns/pod":                    400,
		"/portForward/ns/pod?port=0":             400,
		"/portForward/ns/pod?port=65536":         400,
		"/portForward/ns/pod?port=x":             400,
	} {
		if code, body := s.ask(c, "GET", path, h); code != want {
			t.Errorf("%s: got %d %q, want %d", path, code, body, want)
		}
	}
	asked := fmt.Sprint(s.agent.wasAsked())
	if !strings.Contains(asked, "forward ns/pod/ [80 81 82]") || !strings.Contains(asked, "forward ns/pod/uid [80]") {
		t.Error(asked)
	}
}
