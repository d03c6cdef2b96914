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
// configuration. If that connection is half open (packets are lost without an error), the lease would not be renewed
// either, and the control plane would treat a healthy node as lost. So heartbeats have a connection of their own, which
// is replaced when it does not work.
type beat struct {
	config    *rest.Config
	userAgent string

	mu        sync.Mutex
	client    *client.Client
	transport *http.Transport // nil if the configuration has its own
}

// newBeat prepares the client for heartbeats. It opens no connection.
func newBeat(config *rest.Config, userAgent string) (*beat, error) {
	b := &beat{config: config, userAgent: userAgent}
	return b, b.renew()
}

// api returns the client for the next request.
func (b *beat) api() *client.Client {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.client
}

// renew makes the next request use a new connection, with the current certificates from the files.
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
		dial := own.Dial
		if dial == nil {
			dial = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext
		}
		transport = utilnet.SetTransportDefaults(&http.Transport{
			Proxy:               own.Proxy,
			DialContext:         dial,
			TLSClientConfig:     tls,
			TLSHandshakeTimeout: 5 * time.Second,
			MaxIdleConnsPerHost: 1,
			IdleConnTimeout:     90 * time.Second,
		})
		own.Transport = transport
		own.TLSClientConfig, own.Dial = rest.TLSClientConfig{}, nil
	}
	// No rate limit: a heartbeat must not wait in a queue.
	c, err := client.New(own, -1, 0, b.userAgent)
	if err != nil {
		return fmt.Errorf("set up the connection for heartbeats: %w", err)
	}
	b.mu.Lock()
	old := b.transport
	b.client, b.transport = c, transport
	b.mu.Unlock()
	if old != nil {
		old.CloseIdleConnections() // requests in flight end at their own deadlines
	}
	return nil
}
