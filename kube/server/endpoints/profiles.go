package endpoints

import (
	"net/http"
	"net/http/pprof"
	"runtime"
	"strings"
	"sync"

	"github.com/nodelet/nodelet/kube/server"
)

// memorySampling is the average number of allocated bytes between two samples of the memory profiles, Go's default.
const memorySampling = 512 << 10

// sampling guards runtime.MemProfileRate.
var sampling sync.Mutex

// sampleMemory starts the memory profiles. They cost half a MiB that is never released and grows every day, so they are
// off until a client asks for one: it then shows what is allocated from that time on.
func sampleMemory() {
	sampling.Lock()
	defer sampling.Unlock()
	if runtime.MemProfileRate == 0 {
		runtime.MemProfileRate = memorySampling
	}
}

// profiles returns the profiles of the Go runtime, for `go tool pprof` (enableProfilingHandler). They cost nothing
// until a client asks for one.
func profiles() []server.Mount {
	mount := func(path string, h http.HandlerFunc) server.Mount {
		return server.Mount{Path: "/debug/pprof" + path, Debug: true, Handler: h}
	}
	return []server.Mount{
		mount("", profile), mount("/", profile), mount("/cmdline", pprof.Cmdline), mount("/profile", pprof.Profile),
		mount("/symbol", pprof.Symbol), mount("/trace", pprof.Trace),
	}
}

// profile answers with the profile that the path names, or with a list of all.
func profile(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/heap") || strings.HasSuffix(r.URL.Path, "/allocs") {
		sampleMemory()
	}
	pprof.Index(w, r)
}
