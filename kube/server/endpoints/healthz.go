package endpoints

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/nodelet/nodelet/internal/listener"
	"github.com/nodelet/nodelet/kube/server"
)

// ServeHealthz serves healthz at the address, without TLS, until ctx ends. While the port cannot be opened, because
// another program has it, it tries again. Port 0 turns it off.
func ServeHealthz(ctx context.Context, addr netip.AddrPort, healthz http.Handler, log *slog.Logger) {
	if addr.Port() == 0 {
		return
	}
	serveHealthz(ctx, func() (net.Listener, error) { return net.Listen("tcp", addr.String()) }, healthz,
		func(err error, retryIn time.Duration) {
			log.Error("cannot serve healthz; set healthzPort to a free port, or to 0",
				"addr", addr, "err", err, "retryIn", retryIn)
		})
}

func serveHealthz(ctx context.Context, open func() (net.Listener, error), healthz http.Handler,
	failed func(error, time.Duration)) {
	s := &http.Server{
		Handler:        healthz,
		ReadTimeout:    5 * time.Second,
		WriteTimeout:   10 * time.Second,
		IdleTimeout:    90 * time.Second,
		MaxHeaderBytes: 8 << 10,
		BaseContext:    func(net.Listener) context.Context { return ctx },
	}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	listener.Serve(ctx, open, server.Bounded(s), failed)
}
