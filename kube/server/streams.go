package server

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/apimachinery/pkg/util/remotecommand"
)

func (s *Server) serveExec(w http.ResponseWriter, r *http.Request, at place) {
	s.command(w, r, at, "exec", func(in Container, o StreamOptions) (string, error) {
		return s.cfg.Agent.Exec(r.Context(), in, r.URL.Query()["command"], o)
	})
}

func (s *Server) serveAttach(w http.ResponseWriter, r *http.Request, at place) {
	s.command(w, r, at, "attach", func(in Container, o StreamOptions) (string, error) {
		return s.cfg.Agent.Attach(r.Context(), in, o)
	})
}

func (s *Server) servePortForward(w http.ResponseWriter, r *http.Request, at place) {
	in, err := at.pods()
	tunnel := s.cfg.Streams.WebSockets && speaks(r, portforward.WebsocketsSPDYTunnelingPortForwardV1)
	var ports []int32
	if err == nil && !tunnel { // each SPDY stream names its port
		ports, err = portOptions(r)
	}
	to := ""
	if err == nil {
		to, err = s.cfg.Agent.PortForward(r.Context(), in, ports)
	}
	s.stream(w, r, to, err, func(target *url.URL) error {
		if tunnel {
			s.cfg.Metrics.WebSocket("portforward")
		}
		return s.pipe(target, tunnel).serve(w, r)
	})
}

// command connects the client of an exec or attach with the runtime at the URL that open returns, or answers with the
// error.
func (s *Server) command(w http.ResponseWriter, r *http.Request, at place, kind string,
	open func(Container, StreamOptions) (string, error)) {
	in, err := at.named()
	var o StreamOptions
	if err == nil {
		o, err = streamOptions(r.URL.Query())
	}
	to := ""
	if err == nil {
		to, err = open(in, o)
	}
	s.stream(w, r, to, err, func(target *url.URL) error {
		if !s.cfg.Streams.WebSockets || !speaks(r, remotecommand.StreamProtocolV5Name) {
			return s.pipe(target, false).serve(w, r)
		}
		s.cfg.Metrics.WebSocket(kind)
		end, err := s.sessions.begin(at, translationWeight-1)
		if err != nil {
			return err
		}
		defer end()
		return s.translate(w, r, target, o)
	})
}

func (s *Server) pipe(target *url.URL, tunnel bool) *pipe {
	return &pipe{target: target, tunnel: tunnel, idle: s.cfg.Streams.Idle, log: s.log}
}

// stream calls serve with the URL at which the runtime serves the stream, or answers with the error.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, to string, err error, serve func(*url.URL) error) {
	if err == nil && !upgrades(r) {
		err = Errorf(http.StatusBadRequest, "Upgrade request required")
	}
	var target *url.URL
	if err == nil {
		target, err = url.Parse(to)
	}
	if err == nil {
		err = serve(target)
	}
	if err != nil {
		s.fail(w, err)
	}
}

// streamOptions parses which streams are requested. A terminal has no separate stderr.
func streamOptions(q url.Values) (StreamOptions, error) {
	on := func(name string) bool { return q.Get(name) == "1" || q.Get(name) == "true" }
	o := StreamOptions{Stdin: on("input"), Stdout: on("output"), Stderr: on("error"), TTY: on("tty")}
	if o.TTY {
		o.Stderr = false
	}
	if !o.Stdin && !o.Stdout && !o.Stderr {
		return o, Errorf(http.StatusBadRequest, "you must specify at least 1 of stdin, stdout, stderr")
	}
	return o, nil
}

// portOptions parses the ports of a port-forward over WebSocket; over SPDY each stream names its port.
func portOptions(r *http.Request) ([]int32, error) {
	if !strings.EqualFold(strings.TrimSpace(r.Header.Get("Upgrade")), "websocket") {
		return nil, nil
	}
	var ports []int32
	for _, list := range r.URL.Query()["port"] {
		for text := range strings.SplitSeq(list, ",") {
			n, err := strconv.ParseUint(text, 10, 16)
			if err != nil || n == 0 {
				return nil, Errorf(http.StatusBadRequest, "unable to parse %q as a port", short(text))
			}
			ports = append(ports, int32(n))
		}
	}
	if len(ports) == 0 {
		return nil, Errorf(http.StatusBadRequest, "query parameter %q is required", "port")
	}
	return ports, nil
}

// upgrades reports whether a request upgrades to another protocol: SPDY or WebSocket.
func upgrades(r *http.Request) bool {
	if r.ProtoMajor != 1 || r.Header.Get("Upgrade") == "" {
		return false
	}
	for _, h := range r.Header.Values("Connection") {
		for t := range strings.SplitSeq(h, ",") {
			if strings.EqualFold(strings.TrimSpace(t), "upgrade") {
				return true
			}
		}
	}
	return false
}
