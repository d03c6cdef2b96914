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

// maxPending bounds the connections on which no request has been authorized yet, and all of the read-only port. The
// API server can open many at once.
const maxPending = 256

// pending are the connections of a server on which no request has been authorized yet. One more than maxPending closes
// the oldest connection of the address that has most of them, so that a client from another address is served.
type pending struct {
	mu  sync.Mutex
	all []net.Conn // the oldest first
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

type removeKey struct{}

// add adds a new connection. The requests of its context can be passed to authorized.
func (p *pending) add(ctx context.Context, c net.Conn) context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, c)
	if len(p.all) > maxPending {
		i := p.excess()
		closeNow(p.all[i])
		p.all = slices.Delete(p.all, i, i+1)
	}
	return context.WithValue(ctx, removeKey{}, func() { p.remove(c) })
}

// excess returns the index of the oldest connection of the address that has most of them. p.mu is held.
func (p *pending) excess() (index int) {
	count := map[netip.Addr]int{}
	for _, c := range p.all {
		count[source(c)]++
	}
	for i, c := range p.all {
		if count[source(c)] > count[source(p.all[index])] {
			index = i
		}
	}
	return index
}

func (p *pending) remove(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = slices.DeleteFunc(p.all, func(other net.Conn) bool { return other == c })
}

// authorized ends the limit for the connection of a request.
func authorized(r *http.Request) {
	if remove, ok := r.Context().Value(removeKey{}).(func()); ok {
		remove()
	}
}

func source(c net.Conn) netip.Addr {
	at, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	return at.Addr()
}

// closeNow closes a connection without the farewell of TLS, which can wait for the peer.
func closeNow(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	_ = c.Close()
}
