package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/internal/listener"
	"github.com/nodelet/nodelet/kube/client"
)

const (
	// headerTime bounds the TLS handshake, and again the headers of a request.
	headerTime = 10 * time.Second
	// bodyTime and maxBody bound the body of a request.
	bodyTime = 30 * time.Second
	maxBody  = 1 << 20
	// maxHeader bounds the headers of a request, with its URL, which contains the command of an exec, and maxFields how
	// many there are: a session keeps them, and short ones take about 16 times what the client sends.
	maxHeader = 256 << 10
	maxFields = 256
	// writeTime bounds the writing of an answer to a caller that has no permission, or needs none.
	writeTime = 5 * time.Minute
	// answerTime bounds an answer to others that is not a stream, as in the kubelet: a log file may be large, and a
	// checkpoint or a command may take long.
	answerTime = 4 * time.Hour
	// idleTime closes connections without requests.
	idleTime = 90 * time.Second
)

// Config is what a Server needs.
type Config struct {
	// Listen is the address of Run.
	Listen netip.AddrPort
	// ReadOnly, if its port is not 0, is served without TLS and without authentication: /pods and the mounts for it.
	ReadOnly netip.AddrPort
	// Node is the name of the node; permissions refer to it.
	Node string

	// TLS has the serving certificate, and limits what clients and the server may agree on.
	TLS *tls.Config
	// Metrics counts requests.
	Metrics Metrics
	// ClientCAFile contains the CAs (PEM) of client certificates; it is read again when it changes. Empty: client
	// certificates are not accepted.
	ClientCAFile string
	// Tokens is a client of authentication.k8s.io/v1 for bearer tokens; nil: they are not accepted. TokenTTL is how long
	// an answer is cached.
	Tokens   rest.Interface
	TokenTTL time.Duration
	// Anonymous accepts callers without credentials, as system:anonymous.
	Anonymous bool
	// Access is a client of authorization.k8s.io/v1; nil: every request is refused.
	Access rest.Interface
	// AlwaysAllow allows everything to authenticated callers. AllowedTTL and DeniedTTL are how long answers are cached.
	AlwaysAllow           bool
	AllowedTTL, DeniedTTL time.Duration

	// Agent answers requests about pods.
	Agent Agent
	// Debug turns on exec, attach, port-forward, run, container logs and the mounts with Debug.
	Debug bool
	// Streams are settings of exec, attach, port-forward and followed logs.
	Streams Streams
	// Sessions bounds how many sessions are open.
	Sessions SessionLimits
	// Mounts are handlers of other packages.
	Mounts []Mount
	Log    *slog.Logger
}

// Connect makes the client that authorizes callers and, if tokens is set, the one that authenticates them. They have no
// rate limit, so that they never wait for the requests of the agent.
func (c *Config) Connect(apiServer *rest.Config, userAgent string, tokens bool) error {
	clients, err := client.New(apiServer, -1, 0, userAgent)
	if err != nil {
		return err
	}
	c.Access = clients.Authorization
	if tokens {
		c.Tokens = clients.Authentication
	}
	return nil
}

// Streams are settings of exec, attach, port-forward and followed logs.
type Streams struct {
	// Idle is how long a stream may be idle; 0: no limit.
	Idle time.Duration
	// WebSockets turns on those that the API server passes on from kubectl (KEP-4006).
	WebSockets bool
}

// Metrics counts requests.
type Metrics interface {
	// Serving is called for a request to the port of a kind, readwrite or readonly, with the path of its route: its first
	// word, or that of all metrics but /metrics itself with the second one, or "other". served is called at its end.
	Serving(kind, method, path string) (served func())
	// WebSocket is called for an exec, attach or portforward over a WebSocket that Streams.WebSockets is about.
	WebSocket(kind string)
}

// Mount is a handler of another package.
type Mount struct {
	// Path is the path, to which a client may append a slash. If it ends with a slash, the mount is for all paths below.
	Path string
	// Access are subresources of nodes, such as "metrics". Permission for one of them is enough. Empty: "proxy".
	Access []string
	// Debug mounts are served only if Config.Debug is set.
	Debug bool
	// ReadOnly mounts are served at Config.ReadOnly too.
	ReadOnly bool
	// Large mounts make an answer in memory. Few of them are served at a time.
	Large   bool
	Handler http.Handler
}

// Server serves the kubelet API.
type Server struct {
	cfg      Config
	log      *slog.Logger
	auth     *authFilter
	routes   []route
	sessions *sessions
	// answers are the large ones, openAnswers those of the read-only port.
	answers, openAnswers *sessions
	// listening is true while the port is open.
	listening atomic.Bool
}

// New returns a Server; Run opens its port.
func New(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, log: cfg.Log}
	if cfg.Access == nil && !cfg.AlwaysAllow {
		s.log.Warn("no API server to authorize requests: the kubelet API rejects all of them " +
			"(authorization.mode AlwaysAllow accepts all authenticated clients)")
	}
	authn, err := newAuthenticator(&cfg)
	if err != nil {
		return nil, err
	}
	s.auth = &authFilter{authn: authn, authorize: newAuthorizer(&cfg), refusals: &refusals{out: cfg.Log}}
	s.sessions = &sessions{
		all:    cmp.Or(cfg.Sessions.All, maxSessions),
		perPod: cmp.Or(cfg.Sessions.PerPod, maxPodSessions),
		of:     map[string]int{},
	}
	s.answers, s.openAnswers = newAnswers(), newAnswers()
	s.routes = s.table()
	return s, nil
}

// Health returns an error as long as the port is not open. A nil Server has none to open.
func (s *Server) Health() error {
	if s != nil && !s.listening.Load() {
		return errors.New("the kubelet API is not served")
	}
	return nil
}

// Run serves until ctx ends, which breaks open streams. While a port cannot be opened, because another program has it,
// or after it has failed, Run tries again.
func (s *Server) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	if s.cfg.ReadOnly.Port() != 0 {
		all.Go(func() { s.runReadOnly(ctx) })
	}
	listener.Serve(ctx, listenAt(s.cfg.Listen), func(l net.Listener) error { return s.Serve(ctx, l) },
		func(err error, retryIn time.Duration) {
			s.log.Error("cannot serve the kubelet API: no logs, exec and metrics; set port and address to free ones",
				"err", err, "retryIn", retryIn)
		})
}

// Serve serves the connections of l until ctx ends, which breaks open streams, or until l fails.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	srv := s.httpServer(ctx, s.Handler())
	srv.TLSConfig = s.tlsConfig()
	p := &pending{}
	p.bound(srv)
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	s.log.Info("serving the kubelet API", "addr", l.Addr().String())
	s.listening.Store(true)
	defer s.listening.Store(false)
	return srv.ServeTLS(p.listen(l), "", "")
}

// tlsConfig returns the configuration of TLS, with which each handshake tells pending about an unknown client. That is
// known before the handshake ends, and so before the client can send a request.
func (s *Server) tlsConfig() *tls.Config {
	c := s.cfg.TLS.Clone()
	c.ClientAuth = tls.RequestClientCert // the authFilter verifies it, so that refusals are logged
	c.NextProtos = []string{"http/1.1"}
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		own := c.Clone()
		own.VerifyConnection = func(state tls.ConnectionState) error {
			if who, _ := s.auth.authn.certificate(&state); who == nil {
				connOf(hello.Context()).setUnknown(true)
			}
			return nil
		}
		return own, nil
	}
	return c
}

func (s *Server) runReadOnly(ctx context.Context) {
	srv := s.httpServer(ctx, limits(http.HandlerFunc(s.serveReadOnly)))
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	listener.Serve(ctx, listenAt(s.cfg.ReadOnly), Bounded(srv), func(err error, retryIn time.Duration) {
		s.log.Error("cannot serve the read-only port; set readOnlyPort to a free port, or to 0",
			"addr", s.cfg.ReadOnly, "err", err, "retryIn", retryIn)
	})
}

func listenAt(addr netip.AddrPort) func() (net.Listener, error) {
	return func() (net.Listener, error) { return net.Listen("tcp", addr.String()) }
}

// httpServer sets no time limit for a whole request, because streams and followed logs last; limits bounds the others.
// It serves no HTTP/2. There a connection has hundreds of requests, each of which takes up to 1 MiB until the client
// has taken the answer, so pending would not bound the memory that unknown callers take.
func (s *Server) httpServer(ctx context.Context, h http.Handler) *http.Server {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		Protocols:   new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(true)
	return srv
}

// limits bounds what a caller may send and how slowly it may read. It comes before the authentication.
func limits(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		_ = c.SetWriteDeadline(time.Now().Add(writeTime))
		if r.ContentLength != 0 {
			_ = c.SetReadDeadline(time.Now().Add(bodyTime))
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		}
		fields := 0
		for _, values := range r.Header {
			fields += len(values)
		}
		if fields > maxFields {
			w.Header().Set("Connection", "close")
			http.Error(w, "too many headers", http.StatusRequestHeaderFieldsTooLarge)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// serve finds the route of a request, authenticates and authorizes it, and runs the handler.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	to := s.find(r)
	defer s.count("readwrite", r, &to)()
	if s.auth.pass(w, r, to) {
		connOf(r.Context()).setUnknown(false)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
		to.handle(w, r)
	}
}

// serveReadOnly serves the routes that need no authentication.
func (s *Server) serveReadOnly(w http.ResponseWriter, r *http.Request) {
	to := s.find(r)
	defer s.count("readonly", r, &to)()
	if !to.readOnly || r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "not served at the read-only port", http.StatusNotFound)
		return
	}
	to.handle(w, r)
}

// count counts a request until the function that it returns is called.
func (s *Server) count(kind string, r *http.Request, to *found) (served func()) {
	path := strings.Trim(to.prefix, "/")
	if root, _, below := strings.Cut(path, "/"); below && root != "metrics" {
		path = root
	}
	if path == "" {
		path = "other"
	}
	return s.cfg.Metrics.Serving(kind, r.Method, path)
}

// Handler returns what Run serves.
func (s *Server) Handler() http.Handler { return limits(http.HandlerFunc(s.serve)) }
