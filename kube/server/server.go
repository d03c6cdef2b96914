package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// headerTime is how long a caller may take for the TLS handshake, and again for the headers of a request.
	headerTime = 10 * time.Second
	// bodyTime and maxBody bound what a request may carry; no handler here wants any.
	bodyTime = 30 * time.Second
	maxBody  = 1 << 20
	// maxHeader is the kubelet's: the command of an exec stands in the URL.
	maxHeader = 1 << 20
	// writeTime is how long an answer that is no stream may take to be read.
	writeTime = 5 * time.Minute
	// idleTime closes connections without requests.
	idleTime = 90 * time.Second
	// listenRetry is the time between two tries to open the port.
	listenRetry = 5 * time.Second
)

// Config says where and to whom the API is served.
type Config struct {
	// Listen is where; port 0 takes any free one (see Addr).
	Listen netip.AddrPort
	// ReadOnly, unless it is zero, is served without TLS and to everybody, with the mounts for that and /pods.
	ReadOnly netip.AddrPort
	// Node is the node's name, which permissions are for.
	Node string

	// Certificate gives the serving certificate of each connection.
	Certificate  func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	MinVersion   uint16
	CipherSuites []uint16
	// ClientCAFile holds the authorities (PEM) whose client certificates count; it is read again when it changes.
	// Empty: none counts.
	ClientCAFile string
	// Tokens speaks to authentication.k8s.io/v1 about bearer tokens; nil: none counts.
	Tokens   rest.Interface
	TokenTTL time.Duration
	// Anonymous lets in who shows nothing, as system:anonymous.
	Anonymous bool
	// Access speaks to authorization.k8s.io/v1; nil: nobody may anything.
	Access rest.Interface
	// AlwaysAllow asks nobody: whoever is known may everything.
	AlwaysAllow           bool
	AllowedTTL, DeniedTTL time.Duration

	// Agent answers for pods.
	Agent Agent
	// Debug serves exec, attach, port-forward, run, container logs and the mounts marked so.
	Debug bool
	// StreamIdle ends streams in which nothing moves for so long; 0: never.
	StreamIdle time.Duration
	// Mounts are handlers of other rooms.
	Mounts []Mount
	Log    *slog.Logger
}

// A Mount is a handler of another room.
type Mount struct {
	// Path is the one path it serves, or with a slash at the end all below it too.
	Path string
	// Access are sub-resources of nodes, such as "metrics": the right to any one of them is enough. Empty: "proxy".
	Access []string
	// Debug: it is served with Config.Debug alone.
	Debug bool
	// ReadOnly: it is served at Config.ReadOnly as well.
	ReadOnly bool
	Handler  http.Handler
}

// Server serves the node's API.
type Server struct {
	cfg      Config
	log      *slog.Logger
	door     *door
	routes   []route
	listener net.Listener
}

// New makes a server. Nothing listens yet.
func New(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, log: cfg.Log}
	known, err := newIdentifier(&cfg)
	if err != nil {
		return nil, err
	}
	s.door = &door{who: known, may: newJudge(&cfg), refusals: newRefusals(cfg.Log)}
	s.routes = s.table()
	return s, nil
}

// Listen opens the port; from then on callers wait until Run serves them.
func (s *Server) Listen() error {
	l, err := net.Listen("tcp", s.cfg.Listen.String())
	if err != nil {
		return fmt.Errorf("listen for the node's API: %w; set port and address to what is free", err)
	}
	s.listener = l
	return nil
}

// ListenAndRun serves until ctx ends. While the port cannot be opened, because another program has it, it tries again.
func (s *Server) ListenAndRun(ctx context.Context) {
	for failed := false; ; failed = true {
		err := s.Listen()
		if err == nil {
			break
		}
		if !failed {
			s.log.Error("cannot serve the node's API: no logs, exec and metrics", "err", err, "retryIn", listenRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(listenRetry):
		}
	}
	s.log.Info("serving the node's API", "addr", s.Addr().String())
	if err := s.Run(ctx); err != nil {
		s.log.Error("stopped serving the node's API: no logs, exec and metrics", "err", err)
	}
}

// Addr is where the server listens.
func (s *Server) Addr() netip.AddrPort { return s.listener.Addr().(*net.TCPAddr).AddrPort() }

// Run serves until ctx ends; streams that are open break then. Listen comes before it.
func (s *Server) Run(ctx context.Context) error {
	srv := s.httpServer(ctx, s.Handler())
	srv.TLSConfig = &tls.Config{
		GetCertificate: s.cfg.Certificate, MinVersion: s.cfg.MinVersion, CipherSuites: s.cfg.CipherSuites,
		ClientAuth: tls.RequestClientCert, // judged at the door, so that the refusal can be told
	}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	if s.cfg.ReadOnly.Port() != 0 {
		go s.runReadOnly(ctx)
	}
	if err := srv.ServeTLS(s.listener, "", ""); ctx.Err() == nil {
		return fmt.Errorf("serve the node's API: %w", err)
	}
	return nil
}

func (s *Server) runReadOnly(ctx context.Context) {
	srv := s.httpServer(ctx, limits(http.HandlerFunc(s.serveReadOnly)))
	srv.Addr = s.cfg.ReadOnly.String()
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	if err := srv.ListenAndServe(); ctx.Err() == nil {
		s.log.Error("the read-only port is not served; set readOnlyPort to a free one, or to 0", "addr", srv.Addr, "err", err)
	}
}

// httpServer has no limit for a whole request, since streams and followed logs last; what is short is bounded in
// limits.
func (s *Server) httpServer(ctx context.Context, h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// limits bound what a caller may send and how slowly an answer may be read. They hold for everybody, before it is known
// who asks.
func limits(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		_ = c.SetWriteDeadline(time.Now().Add(writeTime))
		if r.ContentLength != 0 {
			_ = c.SetReadDeadline(time.Now().Add(bodyTime))
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		}
		next.ServeHTTP(w, r)
	})
}

// serve is one request: who asks, for what, may they, then the handler.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	to := s.find(r)
	if s.door.pass(w, r, to) {
		to.handle(w, r)
	}
}

// serveReadOnly serves everybody what is meant for everybody.
func (s *Server) serveReadOnly(w http.ResponseWriter, r *http.Request) {
	to := s.find(r)
	if !to.readOnly || r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "not served at the read-only port", http.StatusNotFound)
		return
	}
	to.handle(w, r)
}

// Handler is what Run serves: who asks, for what, may they, then the answer.
func (s *Server) Handler() http.Handler { return limits(http.HandlerFunc(s.serve)) }
