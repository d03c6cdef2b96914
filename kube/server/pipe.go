package server

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// dialTime bounds the connection to the runtime's streaming server, upgradeTime its answer to the upgrade.
	dialTime    = 30 * time.Second
	upgradeTime = 30 * time.Second
	// lingerTime is how long nothing may move after one direction of a stream, or a command, has ended. That includes
	// what the client takes of the megabytes that the kernel holds for it.
	lingerTime = 30 * time.Second
	// maxAnswer bounds the runtime's answer if it does not upgrade, in bytes.
	maxAnswer = 64 << 10
	chunk     = 16 << 10
)

// pipe connects a client that upgrades its connection with the runtime's streaming server. It copies bytes and does not
// parse SPDY or WebSocket: half-closed streams, resizes and exit codes are frames of these protocols. A tunnel alone is
// taken out of its messages.
type pipe struct {
	target *url.URL
	tunnel bool          // the client speaks SPDY in the messages of a WebSocket
	idle   time.Duration // 0: no limit
	log    *slog.Logger
}

// serve forwards the upgrade and then all bytes, until both sides have ended. If it returns an error, the client has
// had no answer yet. Without an upgrade of the runtime there is no tunnel (CVE-2018-1002105), and redirects are not
// followed (CVE-2018-1002102).
func (p *pipe) serve(w http.ResponseWriter, r *http.Request) error {
	backend, err := p.dial(r.Context())
	if err != nil {
		return fmt.Errorf("connect to the container runtime's streaming server: %w", err)
	}
	defer backend.Close()
	// Until the upgrade, a client that disconnects ends the call.
	release := context.AfterFunc(r.Context(), func() { _ = backend.Close() })
	answer, reader, err := p.upgrade(r, backend)
	if !release() || err != nil {
		return fmt.Errorf("upgrade the stream to the container runtime: %w", errors.Join(err, r.Context().Err()))
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		return refused(answer)
	}
	client, err := p.accept(w, r, answer)
	if err != nil {
		return fmt.Errorf("take over the connection: %w", err)
	}
	defer client.Close()
	_ = client.SetDeadline(time.Time{})
	_ = backend.SetDeadline(time.Time{})
	began := time.Now()
	up, down := p.join(r.Context(), client, side{backend, reader})
	p.log.Debug("stream ended", "path", r.URL.Path, "took", time.Since(began), "sent", up, "received", down)
	return nil
}

func (p *pipe) dial(ctx context.Context) (net.Conn, error) {
	d := &net.Dialer{Timeout: dialTime, KeepAlive: 30 * time.Second}
	hostOn := func(port string) string {
		return net.JoinHostPort(p.target.Hostname(), cmp.Or(p.target.Port(), port))
	}
	switch p.target.Scheme {
	case "http":
		return d.DialContext(ctx, "tcp", hostOn("80"))
	case "https":
		// The runtime's certificate is self-signed. The runtime returned this address over its socket, with a token for this
		// stream only.
		t := &tls.Dialer{NetDialer: d, Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}}
		return t.DialContext(ctx, "tcp", hostOn("443"))
	}
	return nil, fmt.Errorf("the runtime serves streams at %q, which is neither http nor https", p.target.Scheme)
}

// upgrade forwards the client's request to the runtime's path, without credentials, and reads the answer.
func (p *pipe) upgrade(r *http.Request, backend net.Conn) (*http.Response, *bufio.Reader, error) {
	out := &http.Request{Method: r.Method, URL: p.target, Host: p.target.Host, Header: r.Header.Clone(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	for _, h := range []string{"Authorization", "Cookie", "Origin", "Content-Length", "Transfer-Encoding"} {
		out.Header.Del(h)
	}
	if p.tunnel {
		out.Method = http.MethodPost
		untunneled(out.Header)
	}
	_ = backend.SetDeadline(time.Now().Add(upgradeTime))
	if err := out.Write(backend); err != nil {
		return nil, nil, err
	}
	reader := bufio.NewReaderSize(backend, 4<<10)
	answer, err := http.ReadResponse(reader, out)
	return answer, reader, err
}

// accept answers the client and takes over its connection.
func (p *pipe) accept(w http.ResponseWriter, r *http.Request, answer *http.Response) (side, error) {
	if p.tunnel {
		return acceptTunnel(w, r, answer)
	}
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return side{}, err
	}
	_ = client.SetWriteDeadline(time.Now().Add(upgradeTime))
	if err := answer.Write(client); err != nil {
		_ = client.Close()
		return side{}, err
	}
	return side{client, buffered.Reader}, nil
}

// refused is the error for the client if the runtime did not upgrade.
func refused(answer *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	code := answer.StatusCode
	if code < 400 || code > 599 {
		return Errorf(http.StatusBadGateway, "the container runtime answered %s to an upgrade request", answer.Status)
	}
	return Errorf(code, "%s", text)
}

// side is one end of a stream. reader may hold bytes that were read already.
type side struct {
	net.Conn
	reader *bufio.Reader
}

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// join copies in both directions until both have ended, until after the end of one no byte has moved for lingerTime,
// when none has moved for the idle time, or until ctx ends. It returns the numbers of bytes. What the client still
// sends to a runtime that takes nothing any more is read and dropped: if the connection were closed with bytes that
// were not read, the kernel would drop the rest of the output.
func (p *pipe) join(ctx context.Context, client, backend side) (up, down int64) {
	cut := func() { _ = client.Close(); _ = backend.Close() }
	defer context.AfterFunc(ctx, cut)()
	var c copying
	if p.idle > 0 {
		defer watchIdle(p.idle, c.moved.Load, cut)()
	}
	taken := func() int64 { return c.moved.Load() - unsent(client.Conn) }
	c.linger = sync.OnceValue(func() (stop func()) { return watchIdle(lingerTime, taken, cut) })
	var other sync.WaitGroup
	other.Go(func() { up = c.all(backend, client, true) })
	down = c.all(client, backend, false)
	other.Wait()
	c.linger()()
	return up, down
}

// copying is what the two directions of a stream have in common.
type copying struct {
	moved  atomic.Int64 // the bytes in both
	linger func() (stop func())
}

// all copies until from ends, or until to takes nothing any more. With drop it reads on then.
func (c *copying) all(to, from side, drop bool) (n int64) {
	buf := chunks.Get().(*[chunk]byte)
	defer chunks.Put(buf)
	for broken := false; !broken || drop; {
		k, err := from.read(buf[:])
		if k > 0 && !broken {
			c.moved.Add(int64(k))
			_, werr := to.Write(buf[:k])
			if broken = werr != nil; broken {
				c.linger()
			} else {
				n += int64(k)
			}
		}
		if err != nil {
			break
		}
	}
	c.linger()
	if half, ok := to.Conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	return n
}

// read empties the buffer before it reads from the connection.
func (s side) read(b []byte) (int, error) {
	if s.reader.Buffered() > 0 {
		return s.reader.Read(b[:min(len(b), s.reader.Buffered())])
	}
	return s.Conn.Read(b)
}

// unsent returns how many bytes that were written to a connection its other end has not taken yet, as far as is known.
func unsent(c net.Conn) int64 {
	switch c := c.(type) {
	case interface{ unsent() int64 }:
		return c.unsent()
	case interface{ NetConn() net.Conn }:
		return unsent(c.NetConn())
	}
	return 0
}

// watchIdle calls cut when what moved returns has not changed for the idle time.
func watchIdle(idle time.Duration, moved func() int64, cut func()) (stop func()) {
	var mu sync.Mutex
	mu.Lock()
	defer mu.Unlock()
	seen, over := moved(), false
	var timer *time.Timer
	timer = time.AfterFunc(idle, func() {
		mu.Lock()
		defer mu.Unlock()
		switch now := moved(); {
		case over:
		case now == seen:
			cut()
		default:
			seen = now
			timer.Reset(idle)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		timer.Stop()
	}
}
