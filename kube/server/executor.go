package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"time"

	executor "k8s.io/client-go/tools/remotecommand"
	clientspdy "k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// runtimePing is how often the runtime gets a ping over SPDY, as from the kubelet and kubectl: its own idle time, which
// pings extend, is not to end a stream.
const runtimePing = 5 * time.Second

// NewExecutor returns a client of the runtime's streaming server, for one stream. The rule of pipe.dial holds for
// certificates. There is no proxy, and redirects are not followed (CVE-2018-1002102).
func NewExecutor(target *url.URL) (executor.Executor, error) {
	return newExecutor(target, (&net.Dialer{Timeout: dialTime}).DialContext)
}

func newExecutor(target *url.URL, dial dialFunc) (executor.Executor, error) {
	u := &upgrader{dial: dial}
	var err error
	u.SpdyRoundTripper, err = spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{
		PingPeriod: runtimePing,
		UpgradeTransport: &http.Transport{
			DialContext:     u.connect,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		},
	})
	if err != nil {
		return nil, err
	}
	return executor.NewSPDYExecutorRejectRedirects(u, clientspdy.NewUpgraderForStreaming(u), http.MethodPost, target)
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// upgrader upgrades a connection to the runtime. The answer has the bounds of pipe.upgrade and refused.
type upgrader struct {
	*spdy.SpdyRoundTripper
	dial dialFunc
	conn net.Conn
}

// connect connects until ctx, the one of the stream, ends. The library then waits until the runtime has taken what is
// being written, which may never happen.
func (u *upgrader) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := u.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(upgradeTime))
	u.conn = conn
	return conn, nil
}

// NewConnection implements httpstream.UpgradeRoundTripper.
func (u *upgrader) NewConnection(answer *http.Response) (httpstream.Connection, error) {
	if answer.StatusCode == http.StatusSwitchingProtocols {
		_ = u.conn.SetDeadline(time.Time{})
	}
	answer.Body = http.MaxBytesReader(nil, answer.Body, maxAnswer)
	return u.SpdyRoundTripper.NewConnection(answer)
}
