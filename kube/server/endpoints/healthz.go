package endpoints

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/nodelet/nodelet/internal/backoff"
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
	listener := listen(ctx, func() (net.Listener, error) { return net.Listen("tcp", server.Addr) }, func(err error) {
		log.Error("cannot serve healthz; set healthzPort to a free port, or to 0",
			"addr", server.Addr, "err", err, "retryIn", listenRetry)
	})
	if listener == nil {
		return
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		log.Error("stopped serving healthz", "addr", server.Addr, "err", err)
	}
}

// listen calls open until it succeeds, and failed for the first error. It returns nil if ctx ends.
func listen(ctx context.Context, open func() (net.Listener, error), failed func(error)) net.Listener {
	for first := true; ctx.Err() == nil; first = false {
		l, err := open()
		if err == nil {
			return l
		}
		if first {
			failed(err)
		}
		backoff.Sleep(ctx, listenRetry)
	}
	return nil
}

// listenRetry is the time between two attempts to open a port that another program has.
const listenRetry = 5 * time.Second
