package main

import (
	"net/http"
	"net/http/pprof"
	"runtime"
	"strings"
	"sync"

	"github.com/nodelet/nodelet/kube/server"
)

// memorySampling is the size of what is allocated from one sample of the memory profiles to the next, Go's default.
const memorySampling = 512 << 10

// sampling guards the choice of the rate.
var sampling sync.Mutex

// sampleMemory begins the memory profiles. They cost half a MiB that never comes back, more with each day, so they are off until
// somebody asks for one: it tells of what was allocated from then on.
func sampleMemory() {
	sampling.Lock()
	defer sampling.Unlock()
	if runtime.MemProfileRate == 0 {
		runtime.MemProfileRate = memorySampling
	}
}

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
		mount("", profile), mount("cmdline", pprof.Cmdline), mount("profile", pprof.Profile),
		mount("symbol", pprof.Symbol), mount("trace", pprof.Trace),
	}
}

// profile answers with the profile that the path names, or with a list of all.
func profile(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/heap") || strings.HasSuffix(r.URL.Path, "/allocs") {
		sampleMemory()
	}
	pprof.Index(w, r)
}
