package endpoints

import (
	"net/http"
	"net/http/httptest"
	"runtime"
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
