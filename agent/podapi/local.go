package podapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/internal/listener"
	"github.com/nodelet/nodelet/kube/server"
)

// localSocket is the name of the socket below the root directory; only root can connect to it.
const localSocket = "nodelet.sock"

// Local is what the agent answers to the commands of its own program on this machine, without an API server.
type Local struct {
	Supervisor *agent.Supervisor
	// Node returns the Node object.
	Node func() *corev1.Node
	// Configuration returns the configuration in use, without secrets.
	Configuration func() any
	// Pods answers about pods.
	Pods *Server
}

// Serve answers at the socket below the root directory until ctx ends.
func (l *Local) Serve(ctx context.Context, paths config.Paths, log *slog.Logger) {
	server := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler:           l.handler(paths),
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	listener.Serve(ctx, func() (net.Listener, error) {
		return listener.Unix(filepath.Join(paths.Root, localSocket), 0o750, 0o600)
	}, server.Serve, func(err error, retryIn time.Duration) {
		log.Warn("cannot serve commands such as nodelet status", "err", err, "retryIn", retryIn)
	})
}

func (l *Local) handler(paths config.Paths) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /explain", func(w http.ResponseWriter, r *http.Request) {
		all, err := l.Supervisor.Explain(r.Context())
		answer(w, all, err)
	})
	mux.HandleFunc("GET /problems", func(w http.ResponseWriter, r *http.Request) {
		all, err := l.Supervisor.Problems(r.Context())
		answer(w, all, err)
	})
	mux.HandleFunc("GET /node", func(w http.ResponseWriter, _ *http.Request) { answer(w, l.Node(), nil) })
	mux.HandleFunc("GET /configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, l.Configuration(), nil)
	})
	mux.HandleFunc("GET /certificates", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, paths.Certificates, nil)
	})
	mux.HandleFunc("GET /pods", func(w http.ResponseWriter, r *http.Request) {
		all, err := l.Pods.Pods(r.Context())
		answer(w, all, err)
	})
	mux.HandleFunc("GET /logs/{namespace}/{pod}/{container}", l.serveLogs)
	mux.HandleFunc("POST /exec/{namespace}/{pod}/{container}", l.serveExec)
	return mux
}

// answer writes v as JSON, or the error.
func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		code := http.StatusServiceUnavailable
		if known, ok := errors.AsType[*server.Error](err); ok {
			code = known.Code
		}
		http.Error(w, err.Error(), code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func containerOf(r *http.Request) server.Container {
	return server.Container{
		Namespace: r.PathValue("namespace"),
		Pod:       r.PathValue("pod"),
		Name:      r.PathValue("container"),
	}
}

// serveLogs writes a log. An error after the first byte can only break the connection.
func (l *Local) serveLogs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	o := &corev1.PodLogOptions{
		Follow:     q.Get("follow") == "true",
		Previous:   q.Get("previous") == "true",
		Timestamps: q.Get("timestamps") == "true",
	}
	if n, err := strconv.ParseInt(q.Get("tail"), 10, 64); err == nil && n >= 0 {
		o.TailLines = &n
	}
	out := &flushed{w: w}
	err := l.Pods.Logs(r.Context(), containerOf(r), o, out, out)
	switch {
	case err == nil:
	case !out.begun:
		answer(w, nil, err)
	default:
		panic(http.ErrAbortHandler)
	}
}

// flushed sends each write at once.
type flushed struct {
	w     http.ResponseWriter
	begun bool
}

func (f *flushed) Write(p []byte) (int, error) {
	f.begun = true
	n, err := f.w.Write(p)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}

// serveExec answers with the URL at which the runtime serves the streams of a command.
func (l *Local) serveExec(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	tty := q.Get("tty") == "true"
	url, err := l.Pods.Exec(r.Context(), containerOf(r), q["command"], server.StreamOptions{
		Stdin:  q.Get("stdin") == "true",
		Stdout: true,
		Stderr: !tty,
		TTY:    tty,
	})
	answer(w, url, err)
}
