package main

import (
	"net/http"
	"net/http/pprof"

	"github.com/nodelet/nodelet/kube/server"
)

// profiles are the Go runtime's own views of the agent, for `go tool pprof` by way of the node's API (enableProfilingHandler).
// They cost nothing until somebody asks.
func (n *nodelet) profiles() []server.Mount {
	if !n.cfg.Server.Profiling {
		return nil
	}
	mount := func(path string, h http.HandlerFunc) server.Mount {
		return server.Mount{Path: "/debug/pprof/" + path, Debug: true, Handler: h}
	}
	return []server.Mount{
		mount("", pprof.Index), mount("cmdline", pprof.Cmdline), mount("profile", pprof.Profile),
		mount("symbol", pprof.Symbol), mount("trace", pprof.Trace),
	}
}
