package endpoints

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"testing"
)

// TestMemoryProfileOnDemand checks that only a request for a memory profile starts the sampling.
func TestMemoryProfileOnDemand(t *testing.T) {
	before := runtime.MemProfileRate
	t.Cleanup(func() { runtime.MemProfileRate = before })
	runtime.MemProfileRate = 0
	for _, c := range []struct {
		path string
		rate int
	}{{"goroutine", 0}, {"", 0}, {"heap", memorySampling}, {"allocs", memorySampling}} {
		w := httptest.NewRecorder()
		profile(w, httptest.NewRequest(http.MethodGet, "/debug/pprof/"+c.path, nil))
		if w.Code != http.StatusOK || runtime.MemProfileRate != c.rate {
			t.Errorf(
				"%q: got status %d and a sample each %d bytes, want 200 and %d",
				c.path,
				w.Code,
				runtime.MemProfileRate,
				c.rate,
			)
		}
	}
}

// TestTopsAreMounted checks that a client may leave out the slash at the end of a path below which there are others.
// The kubelet redirects such a client.
func TestTopsAreMounted(t *testing.T) {
	all := paths(Mounts(Config{Profiling: true}, nil))
	for _, path := range []string{"/healthz", "/logs", "/debug/pprof"} {
		if !slices.Contains(all, path) || !slices.Contains(all, path+"/") {
			t.Errorf("got no mount of %s with and without a slash: %q", path, all)
		}
	}
}
