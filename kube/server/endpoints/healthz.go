package endpoints

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/nodelet/nodelet/internal/listener"
)

// ServeHealthz serves healthz at the address, without TLS, until ctx ends. While the port cannot be opened, because
// another program has it, it tries again. Port 0 turns it off.
func ServeHealthz(ctx context.Context, addr netip.AddrPort, healthz http.Handler, log *slog.Logger) {
	if addr.Port() == 0 {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/healthz", healthz)
	mux.Handle("/healthz/", healthz)
	server := &http.Server{
		Addr:              addr.String(),
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      10 * time.Second,
		MaxHeaderBytes:    8 << 10,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	listener.Serve(ctx, func() (net.Listener, error) { return net.Listen("tcp", server.Addr) }, server.Serve,
		func(err error, retryIn time.Duration) {
			log.Error("cannot serve healthz; set healthzPort to a free port, or to 0",
				"addr", server.Addr, "err", err, "retryIn", retryIn)
		})
}
