package node

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
)

// beat is the connection for heartbeats. client-go shares one HTTP/2 connection between all clients of one
// configuration; a connection that is half dead (packets vanish, nobody says so) would then take the lease with it,
// and the node would be given up although it is well. So heartbeats have a connection of their own, which is thrown
// away when it does not work.
type beat struct {
	config    *rest.Config
	userAgent string

	mu        sync.Mutex
	client    *client.Client
	transport *http.Transport // nil where the configuration brings its own
}

// newBeat opens no connection yet.
func newBeat(config *rest.Config, userAgent string) (*beat, error) {
	b := &beat{config: config, userAgent: userAgent}
	return b, b.renew()
}

// api gives the client to use for one request.
func (b *beat) api() *client.Client {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.client
}

// renew makes the next request use a new connection, with the certificates as they are in the files now.
func (b *beat) renew() error {
	if t, ok := b.config.Transport.(interface{ Renew() error }); ok && b.api() != nil {
		return t.Renew()
	}
	own := rest.CopyConfig(b.config)
	var transport *http.Transport
	if own.Transport == nil {
		tls, err := rest.TLSConfigFor(own)
		if err != nil {
			return fmt.Errorf("set up TLS for heartbeats: %w", err)
		}
		dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
		transport = utilnet.SetTransportDefaults(&http.Transport{
			Proxy: own.Proxy, DialContext: dialer.DialContext, TLSClientConfig: tls,
			TLSHandshakeTimeout: 5 * time.Second, MaxIdleConnsPerHost: 1, IdleConnTimeout: 90 * time.Second,
		})
		own.Transport, own.TLSClientConfig = transport, rest.TLSClientConfig{}
	}
	// No rate limit: a heartbeat that waits for its turn is none.
	c, err := client.New(own, -1, 0, b.userAgent)
	if err != nil {
		return fmt.Errorf("set up the connection for heartbeats: %w", err)
	}
	b.mu.Lock()
	old := b.transport
	b.client, b.transport = c, transport
	b.mu.Unlock()
	if old != nil {
		old.CloseIdleConnections() // requests under way end by their own deadlines
	}
	return nil
}
