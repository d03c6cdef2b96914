package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"
)

// drainTime is how long requests that are in flight when the identity changes may use their old connections. What is
// open after that are watches: they are closed, and resume on new connections. A write that takes longer is repeated.
const drainTime = RequestTimeout + 5*time.Second

// Transport connects clients to the API server for as long as the agent runs. Use changes its configuration
// (certificates, CA, address): later requests use new connections. Before the first Use requests wait, so that a node
// can start its work before it has an identity.
type Transport struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// changing is held by Use and Renew, which read files: the later call has the last word.
	changing sync.Mutex

	mu   sync.Mutex
	now  *route        // nil before the first Use
	open chan struct{} // closed by the first Use
	why  string        // what requests wait for before that
}

// route is the result of one configuration.
type route struct {
	server Server
	config *rest.Config
	base   *url.URL
	rt     http.RoundTripper
	dialer *connrotation.Dialer
	idle   func()
}

// NewTransport returns a Transport without a configuration. dialTimeout limits the opening of a connection.
func NewTransport(dialTimeout time.Duration) *Transport {
	d := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return &Transport{dial: d.DialContext, open: make(chan struct{}), why: "the node has no client certificate yet"}
}

// Config returns the configuration for clients. host is the address of the API server before the first Use.
func (t *Transport) Config(host string) *rest.Config {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now != nil {
		host = t.now.config.Host
	}
	return &rest.Config{Host: host, Transport: t}
}

// WaitFor sets what requests wait for before the first Use; their errors contain it.
func (t *Transport) WaitFor(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.why = why
}

// Use makes later requests use rc. It reads the files that rc names. On an error the old configuration stays.
func (t *Transport) Use(rc *rest.Config) error {
	t.changing.Lock()
	defer t.changing.Unlock()
	return t.use(rc)
}

func (t *Transport) use(rc *rest.Config) error {
	next, err := t.route(rc)
	if err != nil {
		return err
	}
	t.mu.Lock()
	old := t.now
	next.server = next.follows(old)
	t.now = next
	t.mu.Unlock()
	if old == nil {
		close(t.open)
		return nil
	}
	old.idle()
	time.AfterFunc(drainTime, old.dialer.CloseAll)
	return nil
}

// A Server tells an API server from others that a Transport has used before or after it. It is 0 for none.
type Server int

// ErrOtherServer is the error of a request whose context was made for another API server.
var ErrOtherServer = errors.New("the kubeconfig names another API server now")

type serverKey struct{}

// On returns a context whose requests reach s only: with it, a request to another API server fails. If s is 0, the
// first request sets it to the one that it reaches. The requests must not be made at the same time.
func (s *Server) On(ctx context.Context) context.Context {
	return context.WithValue(ctx, serverKey{}, s)
}

// check returns an error if the requests of ctx are for another API server than s.
func (s Server) check(ctx context.Context) error {
	wanted, _ := ctx.Value(serverKey{}).(*Server)
	switch {
	case wanted == nil, *wanted == s:
		return nil
	case *wanted == 0:
		*wanted = s
		return nil
	}
	return ErrOtherServer
}

// follows returns the server of r, which replaces old: the same one if it has the same address.
func (r *route) follows(old *route) Server {
	switch {
	case old == nil:
		return 1
	case *r.base == *old.base:
		return old.server
	}
	return old.server + 1
}

// Renew makes later requests use new connections, with the present content of the files.
func (t *Transport) Renew() error {
	t.changing.Lock()
	defer t.changing.Unlock()
	t.mu.Lock()
	now := t.now
	t.mu.Unlock()
	if now == nil {
		return nil
	}
	return t.use(now.config)
}

// Suspect is called when another connection to the API server seems to be dead. It closes the idle ones, for each of
// which a request would wait. HTTP/2 finds the others that are dead by its pings. Without it a watch would wait for
// minutes on such a connection, so all are replaced.
func (t *Transport) Suspect() error {
	t.CloseIdleConnections()
	if os.Getenv("DISABLE_HTTP2") == "" {
		return nil
	}
	return t.Renew()
}

// route makes the connections for rc. client-go would share those of configurations that are equal; heartbeats need
// their own.
func (t *Transport) route(rc *rest.Config) (*route, error) {
	rc = rest.CopyConfig(rc)
	base, _, err := rest.DefaultServerUrlFor(rc)
	if err != nil {
		return nil, fmt.Errorf("parse the address of the API server %q: %w", rc.Host, err)
	}
	dial := t.dial
	if rc.Dial != nil {
		dial = rc.Dial
	}
	dialer := connrotation.NewDialer(dial)
	own := rest.CopyConfig(rc)
	own.Dial = dialer.DialContext
	c, err := own.TransportConfig() // with the credential plugin, if there is one: it wraps the dialer too
	if err != nil {
		return nil, fmt.Errorf("set up the credentials for %s: %w", rc.Host, err)
	}
	tlsConfig, err := transport.TLSConfigFor(c)
	if err != nil {
		return nil, fmt.Errorf("set up TLS for %s: %w", rc.Host, err)
	}
	h := utilnet.SetTransportDefaults(&http.Transport{
		Proxy:               rc.Proxy,
		DialContext:         c.DialHolder.Dial,
		TLSClientConfig:     tlsConfig,
		DisableCompression:  rc.DisableCompression,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 25,
		IdleConnTimeout:     90 * time.Second,
	})
	rt, err := transport.HTTPWrappersForConfig(c, h)
	if err != nil {
		return nil, fmt.Errorf("set up the credentials for %s: %w", rc.Host, err)
	}
	return &route{config: rc, base: base, rt: rt, dialer: dialer, idle: h.CloseIdleConnections}, nil
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	r, err := t.current(req.Context())
	if err == nil {
		err = r.server.check(req.Context())
	}
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	if req.URL.Host != r.base.Host || req.URL.Scheme != r.base.Scheme { // the address of the API server has changed
		req = req.Clone(req.Context())
		req.URL.Scheme, req.URL.Host = r.base.Scheme, r.base.Host
		req.Host = ""
	}
	return r.rt.RoundTrip(req)
}

// CloseIdleConnections closes idle connections. http.Client calls it.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now != nil {
		t.now.idle()
	}
}

// current returns the present route. It waits for the first Use.
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
