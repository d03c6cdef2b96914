package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
)

const (
	// maxPending bounds the connections of unknown clients on which no request has been authorized yet, and all of the
	// read-only port.
	maxPending = 256
	// maxHandshakes bounds these, those on which the handshake has not shown yet who the client is, and those of clients
	// with a valid certificate, all together. A handshake takes less memory than headers. The API server can open hundreds
	// of connections at once.
	maxHandshakes = 1024
)

// pending are the connections of a server on which no request has been authorized yet. One more than a bound closes the
// oldest connection of the address that has most of them, so that a client from another address is served.
type pending struct {
	mu  sync.Mutex
	all []*pendingConn // the oldest first
}

type pendingConn struct {
	net.Conn
	in   *pending
	from netip.Addr
	// unknown: the client has shown no valid certificate, or the port has no TLS. Its headers may take much memory.
	unknown bool
}

// limit makes p bound the connections of a server. Call it before the server serves.
func (p *pending) limit(s *http.Server) {
	s.ConnContext = p.add
	s.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			p.remove(c)
		}
	}
}

// pendingKey is the key for the *pendingConn in the context of a connection.
type pendingKey struct{}

// add adds a new connection. Its context can be passed to unknown, and its requests to authorized.
func (p *pending) add(ctx context.Context, c net.Conn) context.Context {
	at, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	_, secure := c.(*tls.Conn)
	one := &pendingConn{Conn: c, in: p, from: at.Addr(), unknown: !secure}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, one)
	p.enforce()
	return context.WithValue(ctx, pendingKey{}, one)
}

// enforce closes the connection that exceeds a bound. p.mu is held.
func (p *pending) enforce() {
	ofUnknown := slices.DeleteFunc(slices.Clone(p.all), func(c *pendingConn) bool { return !c.unknown })
	switch {
	case len(ofUnknown) > maxPending:
		p.close(excess(ofUnknown))
	case len(p.all) > maxHandshakes:
		p.close(excess(p.all))
	}
}

// excess returns the oldest connection of the address that has most of all.
func excess(all []*pendingConn) *pendingConn {
	count := map[netip.Addr]int{}
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

// close closes a connection without the farewell of TLS, which can wait for the peer. p.mu is held.
func (p *pending) close(c *pendingConn) {
	p.all = slices.DeleteFunc(p.all, func(other *pendingConn) bool { return other == c })
	raw := c.Conn
	if t, ok := raw.(*tls.Conn); ok {
		raw = t.NetConn()
	}
	_ = raw.Close()
}

func (p *pending) remove(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = slices.DeleteFunc(p.all, func(other *pendingConn) bool { return other.Conn == c })
}

// authorized ends the limit for the connection of a request.
func authorized(r *http.Request) {
	if c, ok := r.Context().Value(pendingKey{}).(*pendingConn); ok {
		c.in.remove(c.Conn)
	}
}

// unknown records that the client of a connection has shown no valid certificate in the handshake.
func unknown(ctx context.Context) {
	if c, ok := ctx.Value(pendingKey{}).(*pendingConn); ok {
		c.in.mu.Lock()
		defer c.in.mu.Unlock()
		c.unknown = true
		c.in.enforce()
	}
}
