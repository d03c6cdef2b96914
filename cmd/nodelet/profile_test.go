package main

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
)

// TestMemoryProfileOnDemand: memory is sampled from the first request for it on, and no other profile makes that begin.
func TestMemoryProfileOnDemand(t *testing.T) {
	t.Setenv("GODEBUG", "")
	before := runtime.MemProfileRate
	t.Cleanup(func() { runtime.MemProfileRate = before })
	boundMemory()
	for _, c := range []struct {
		path string
		rate int
	}{{"goroutine", 0}, {"", 0}, {"heap", memorySampling}, {"allocs", memorySampling}} {
		w := httptest.NewRecorder()
		profile(w, httptest.NewRequest(http.MethodGet, "/debug/pprof/"+c.path, nil))
		if w.Code != http.StatusOK || runtime.MemProfileRate != c.rate {
			t.Errorf("%q: status %d, a sample each %d bytes, want %d", c.path, w.Code, runtime.MemProfileRate, c.rate)
		}
	}
}
