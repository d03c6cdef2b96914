package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// maxUnknown bounds the connections of unknown clients.
	maxUnknown = 256
	// maxPending bounds these, those on which the handshake has not shown yet who the client is, and those of others, all
	// together. The API server can open hundreds of connections at once.
	maxPending = 1024
	// maxSent bounds what all these clients have sent of the requests that are being read or answered, in bytes. Short
	// headers take about 16 times as much memory.
	maxSent = 16 << 20
)

// pending are the connections of a server without a session. One more than a bound closes the oldest connection of the
// network that has most of them, so that a client from another network is served. If the clients send too much, the
// connection is closed whose client has sent most. Connections with a session are bounded by sessions.
type pending struct {
	mu   sync.Mutex
	all  []*pendingConn // the oldest first
	sent int            // by all of them
}

// pendingConn is a connection below TLS, or without TLS. in.mu guards unknown, counted and sent.
type pendingConn struct {
	net.Conn
	in   *pending
	from netip.Prefix
	// unknown: the client has shown neither a valid certificate nor a right, or the port has no TLS.
	unknown bool
	counted bool // in.all contains it
	sent    int
}

// Bounded returns a function that serves s, which has no authentication, with a bound of its connections.
func Bounded(s *http.Server) (serve func(net.Listener) error) {
	p := &pending{}
	p.bound(s)
	return func(l net.Listener) error { return s.Serve(p.listen(l)) }
}

// bound makes p bound the connections that s accepts from listeners of listen. Call it before s serves.
func (p *pending) bound(s *http.Server) {
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		one, secure := below(c)
		one.unknown = !secure
		p.add(one)
		return context.WithValue(ctx, pendingKey{}, one)
	}
	s.ConnState = func(c net.Conn, state http.ConnState) {
		one, _ := below(c)
		switch state {
		case http.StateIdle: // before the next request
			p.remove(one)
			p.add(one)
		case http.StateClosed:
			p.remove(one)
		}
	}
}

// listen returns a listener whose connections count what their clients send.
func (p *pending) listen(l net.Listener) net.Listener { return &pendingListener{l, p} }

type pendingListener struct {
	net.Listener
	in *pending
}

func (l *pendingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	from, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	return &pendingConn{Conn: c, in: l.in, from: networkOf(from)}, nil
}

// networkOf returns the address of a client, of IPv6 the 64 bits that all addresses of a client have in common.
func networkOf(client netip.AddrPort) netip.Prefix {
	addr := client.Addr().Unmap()
	network, _ := addr.Prefix(min(addr.BitLen(), 64))
	return network
}

// below returns the connection below TLS, and whether there is TLS.
func below(c net.Conn) (one *pendingConn, secure bool) {
	if t, ok := c.(*tls.Conn); ok {
		c, secure = t.NetConn(), true
	}
	return c.(*pendingConn), secure
}

// pendingKey is the key for the *pendingConn in the context of a connection and of its requests.
type pendingKey struct{}

// Read counts what the client sends.
func (c *pendingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	p := c.in
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.counted {
		c.sent += n
		p.sent += n
		if p.sent > maxSent {
			p.close(slices.MaxFunc(p.all, func(a, b *pendingConn) int { return cmp.Compare(a.sent, b.sent) }))
		}
	}
	return n, err
}

// unsent returns how many bytes the kernel holds that the client has not acknowledged.
func (c *pendingConn) unsent() int64 {
	socket, ok := c.Conn.(syscall.Conn)
	if !ok {
		return 0
	}
	n := 0
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	}
	return int64(n)
}

func (p *pending) add(c *pendingConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, c)
	c.counted = true
	p.enforce()
}

func (p *pending) remove(c *pendingConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(c)
}

// forget removes a connection. p.mu is held.
func (p *pending) forget(c *pendingConn) {
	p.all = slices.DeleteFunc(p.all, func(other *pendingConn) bool { return other == c })
	p.sent -= c.sent
	c.counted, c.sent = false, 0
}

// enforce closes the connection that exceeds a bound of their number. p.mu is held.
func (p *pending) enforce() {
	ofUnknown := slices.DeleteFunc(slices.Clone(p.all), func(c *pendingConn) bool { return !c.unknown })
	switch {
	case len(ofUnknown) > maxUnknown:
		p.close(excess(ofUnknown))
	case len(p.all) > maxPending:
		p.close(excess(p.all))
	}
}

// excess returns the oldest connection of the network that has most of all.
func excess(all []*pendingConn) *pendingConn {
	count := map[netip.Prefix]int{}
	for _, c := range all {
		count[c.from]++
	}
	found := all[0]
	for _, c := range all {
		if count[c.from] > count[found.from] {
			found = c
		}
	}
	return found
}

// close closes a connection without close_notify, which can wait for the peer. p.mu is held.
func (p *pending) close(c *pendingConn) {
	p.forget(c)
	_ = c.Conn.Close()
}

// connOf returns the connection of a handshake or a request, which its context contains. It is nil with a server that
// has no bound.
func connOf(ctx context.Context) *pendingConn {
	c, _ := ctx.Value(pendingKey{}).(*pendingConn)
	return c
}

// setUnknown records whether the client is unknown.
func (c *pendingConn) setUnknown(is bool) {
	if c != nil {
		c.in.mu.Lock()
		defer c.in.mu.Unlock()
		c.unknown = is
		c.in.enforce()
	}
}

// leave ends the bounds until the next request.
func (c *pendingConn) leave() {
	if c != nil {
		c.in.remove(c)
	}
}
