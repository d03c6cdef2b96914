package client

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"
)

// drainTime is how long requests that were under way when the identity changed may go on over their old connections. What is
// still open then are watches: they are cut, and taken up where they were.
const drainTime = RequestTimeout + 5*time.Second

// Transport is the way to the API server of the clients that live as long as the agent. It outlives changes of certificates,
// authorities and address: Use gives it another configuration, requests from then on go over new connections. Before the
// first Use requests wait, so that a node may start its work before it has an identity.
type Transport struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu   sync.Mutex
	now  *route        // nil before the first Use
	open chan struct{} // closed by the first Use
	why  string        // what requests wait for before that
}

// route is what one configuration made.
type route struct {
	config *rest.Config
	base   *url.URL
	rt     http.RoundTripper
	dialer *connrotation.Dialer // nil where client-go keeps the connections
	idle   func()
}

// NewTransport makes a Transport without a configuration. dialTimeout bounds the opening of a connection.
func NewTransport(dialTimeout time.Duration) *Transport {
	d := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return &Transport{dial: d.DialContext, open: make(chan struct{}), why: "there is no identity yet"}
}

// Config is what clients are made from. host is the API server's address where no configuration was given yet.
func (t *Transport) Config(host string) *rest.Config {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now != nil {
		host = t.now.config.Host
	}
	return &rest.Config{Host: host, Transport: t}
}

// WaitFor says what requests wait for as long as there is no configuration; it is part of their error when they end.
func (t *Transport) WaitFor(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.why = why
}

// Use makes requests take rc from now on. Files that rc names are read now. On an error the old configuration stays.
func (t *Transport) Use(rc *rest.Config) error {
	next, err := t.route(rc)
	if err != nil {
		return err
	}
	t.mu.Lock()
	old := t.now
	t.now = next
	t.mu.Unlock()
	if old == nil {
		close(t.open)
		return nil
	}
	old.idle()
	if old.dialer != nil {
		time.AfterFunc(drainTime, old.dialer.CloseAll)
	}
	return nil
}

// Renew makes the next requests use new connections, with the files as they are now.
func (t *Transport) Renew() error {
	t.mu.Lock()
	now := t.now
	t.mu.Unlock()
	if now == nil {
		return nil
	}
	return t.Use(now.config)
}

func (t *Transport) route(rc *rest.Config) (*route, error) {
	rc = rest.CopyConfig(rc)
	base, _, err := rest.DefaultServerUrlFor(rc)
	if err != nil {
		return nil, fmt.Errorf("read the API server's address %q: %w", rc.Host, err)
	}
	if rc.ExecProvider != nil || rc.AuthProvider != nil || rc.Transport != nil {
		rt, err := rest.TransportFor(rc) // client-go knows how to ask the plugin
		if err != nil {
			return nil, fmt.Errorf("set up the connection to %s: %w", rc.Host, err)
		}
		return &route{config: rc, base: base, rt: rt, idle: func() { utilnet.CloseIdleConnectionsFor(rt) }}, nil
	}
	tlsConfig, err := rest.TLSConfigFor(rc)
	if err != nil {
		return nil, fmt.Errorf("set up TLS for %s: %w", rc.Host, err)
	}
	dial := t.dial
	if rc.Dial != nil {
		dial = rc.Dial
	}
	dialer := connrotation.NewDialer(dial)
	h := utilnet.SetTransportDefaults(&http.Transport{
		Proxy: rc.Proxy, DialContext: dialer.DialContext, TLSClientConfig: tlsConfig, DisableCompression: rc.DisableCompression,
		TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: 25, IdleConnTimeout: 90 * time.Second,
	})
	plain := rest.CopyConfig(rc) // what is left are headers: tokens, impersonation
	plain.TLSClientConfig = rest.TLSClientConfig{}
	rt, err := rest.HTTPWrappersForConfig(plain, h)
	if err != nil {
		return nil, fmt.Errorf("set up the credentials for %s: %w", rc.Host, err)
	}
	return &route{config: rc, base: base, rt: rt, dialer: dialer, idle: h.CloseIdleConnections}, nil
}

// RoundTrip is part of http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	r, err := t.current(req.Context())
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	if req.URL.Host != r.base.Host || req.URL.Scheme != r.base.Scheme { // the API server has moved
		req = req.Clone(req.Context())
		req.URL.Scheme, req.URL.Host, req.Host = r.base.Scheme, r.base.Host, ""
	}
	return r.rt.RoundTrip(req)
}

// CloseIdleConnections lets http.Client do so.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now != nil {
		t.now.idle()
	}
}

// current waits for the first configuration where there is none.
func (t *Transport) current(ctx context.Context) (*route, error) {
	t.mu.Lock()
	now, why := t.now, t.why
	t.mu.Unlock()
	if now != nil {
		return now, nil
	}
	select {
	case <-t.open:
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.now, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", why, ctx.Err())
	}
}
