package endpoints

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealthz(t *testing.T) {
	var failure error
	h := HealthzHandler([]Check{{"ping", func() error { return nil }}, {"lease", func() error { return failure }}}, nil)
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code, w.Body.String()
	}
	if code, body := get("/healthz"); code != 200 || body != "ok" {
		t.Errorf("got %d %q, want 200 ok", code, body)
	}
	if code, body := get("/healthz?verbose"); code != 200 || body != "[+]ping ok\n[+]lease ok\nhealthz check passed\n" {
		t.Errorf("verbose: got %d %q", code, body)
	}
	failure = errors.New("a secret reason")
	code, body := get("/healthz")
	if code != 500 || !strings.Contains(body, "[-]lease failed: reason withheld") || strings.Contains(body, "secret") {
		t.Errorf("with a failure: got %d %q", code, body)
	}
	for path, want := range map[string]int{
		"/healthz/ping": 200, "/healthz/lease": 500, "/healthz?exclude=lease": 200, "/healthz/other": 404,
		"/": 404, "/debug/pprof/": 404, "/metrics": 404, "/configz": 404,
	} {
		if code, _ := get(path); code != want {
			t.Errorf("%s: got %d, want %d", path, code, want)
		}
	}
}
