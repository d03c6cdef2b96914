package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/nodelet/nodelet/test/kube/frame"
)

// faultyListener accepts connections that behave as the mode says.
type faultyListener struct {
	net.Listener
	faults *apiFaults
}

func (l *faultyListener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &faultyConn{TCPConn: raw.(*net.TCPConn), faults: l.faults, closed: make(chan struct{})}
		switch mode, _ := l.faults.now(); mode {
		case apiRefuse:
			c.reset()
			continue
		case apiReset:
			time.AfterFunc(time.Duration(rand.IntN(500))*time.Millisecond, c.reset)
		}
		l.faults.mu.Lock()
		l.faults.conns[c] = true
		l.faults.mu.Unlock()
		return c, nil
	}
}

// faultyConn is a connection whose bytes may be lost.
type faultyConn struct {
	*net.TCPConn
	faults *apiFaults
	once   sync.Once
	closed chan struct{}
}

// reset closes the connection with an RST.
func (c *faultyConn) reset() {
	_ = c.SetLinger(0)
	go c.Close() // callers may hold the lock that Close takes
}

func (c *faultyConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.faults.mu.Lock()
	delete(c.faults.conns, c)
	c.faults.mu.Unlock()
	return c.TCPConn.Close()
}

// Read waits while packets are dropped.
func (c *faultyConn) Read(b []byte) (int, error) {
	for {
		mode, changed := c.faults.now()
		if mode != apiDrop {
			return c.TCPConn.Read(b)
		}
		select {
		case <-changed:
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
}

// Write says that all was written when packets are dropped on the way back.
func (c *faultyConn) Write(b []byte) (int, error) {
	if mode, _ := c.faults.now(); mode == apiDrop || mode == apiOneWay {
		return len(b), nil
	}
	return c.TCPConn.Write(b)
}

// faultyTransport makes requests fail, wait, or be answered from what was true before.
type faultyTransport struct {
	faulty *apiFaults
	next   http.RoundTripper
}

func (t *faultyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	mode, changed := t.faulty.now()
	watching := r.URL.Query().Get("watch") != ""
	switch {
	case mode == apiSlow:
		return t.late(r, time.Duration(rand.IntN(3000))*time.Millisecond)
	case mode == apiHang:
		select {
		case <-changed:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	case mode == apiErrors && rand.IntN(10) < 7:
		code := []int{500, 502, 503, 504}[rand.IntN(4)]
		return answer(r, code, "text/plain", "a proxy on the way says "+strconv.Itoa(code)), nil
	case mode == apiTooMany && rand.IntN(10) < 7:
		a := answer(r, http.StatusTooManyRequests, "application/json", statusObject(429, "TooManyRequests"))
		a.Header.Set("Retry-After", strconv.Itoa(rand.IntN(2)))
		return a, nil
	case mode == apiExpired && watching && rand.IntN(2) == 0:
		return expired(r), nil
	case mode == apiLags && watching && r.URL.Query().Get("sendInitialEvents") != "":
		return answer(r, http.StatusUnprocessableEntity, "application/json", statusObject(422, "Invalid")), nil
	case mode == apiLags && watching:
		return expired(r), nil
	case mode == apiLags && r.Method == http.MethodGet && r.URL.Query().Get("resourceVersion") == "0":
		return t.old(r)
	}
	return t.next.RoundTrip(r)
}

func (t *faultyTransport) late(r *http.Request, d time.Duration) (*http.Response, error) {
	select {
	case <-time.After(d):
		return t.next.RoundTrip(r)
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// recorded is an answer of the API server that is given again.
type recorded struct {
	code        int
	contentType string
	body        []byte
}

// old answers from the API server's cache as it was when it was first asked under apiLags.
func (t *faultyTransport) old(r *http.Request) (*http.Response, error) {
	key := r.URL.String() + " " + r.Header.Get("Accept")
	t.faulty.mu.Lock()
	was := t.faulty.stale[key]
	t.faulty.mu.Unlock()
	if was == nil {
		resp, err := t.next.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		was = &recorded{resp.StatusCode, resp.Header.Get("Content-Type"), body}
		t.faulty.mu.Lock()
		if t.faulty.stale != nil {
			t.faulty.stale[key] = was
		}
		t.faulty.mu.Unlock()
	}
	return answer(r, was.code, was.contentType, string(was.body)), nil
}

func answer(r *http.Request, code int, contentType, body string) *http.Response {
	return &http.Response{
		Status:        fmt.Sprintf("%d %s", code, http.StatusText(code)),
		StatusCode:    code,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        http.Header{"Content-Type": {contentType}},
		Body:          io.NopCloser(bytes.NewReader([]byte(body))),
		ContentLength: int64(len(body)),
		Request:       r,
	}
}

// expired answers a watch from a version that the API server no longer has: it accepts it, and says so in the stream.
func expired(r *http.Request) *http.Response {
	status := apierrors.NewResourceExpired("soak test").ErrStatus
	return answer(r, http.StatusOK, frame.ContentType, string(frame.Of(apiwatch.Error, &status)))
}

// statusObject is a Status object of the API.
func statusObject(code int, reason string) string {
	return strings.NewReplacer("CODE", strconv.Itoa(code), "REASON", reason).Replace(
		`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"soak test","reason":"REASON","code":CODE}`)
}
