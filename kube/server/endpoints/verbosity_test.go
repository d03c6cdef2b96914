package endpoints

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestDebugFlags checks that only a PUT of a number changes the verbosity, and only if the configuration allows it.
func TestDebugFlags(t *testing.T) {
	config := Config{Verbosity: &Verbosity{}}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: config.Verbosity}))
	for _, c := range []struct {
		enabled      bool
		method, body string
		code         int
		answer       string
		steps        bool
	}{
		{true, http.MethodPut, "4", http.StatusOK, "successfully set klog.logging.verbosity to 4", true},
		{true, http.MethodPut, "much", http.StatusBadRequest, "invalid syntax", true},
		{true, http.MethodPut, "-1", http.StatusBadRequest, "invalid syntax", true},
		{true, http.MethodPut, strings.Repeat("1", 1000), http.StatusBadRequest, "out of range", true},
		{true, http.MethodGet, "", http.StatusNotAcceptable, "unsupported http method", true},
		{true, http.MethodPost, "2", http.StatusNotAcceptable, "unsupported http method", true},
		{true, http.MethodPut, "3\n", http.StatusOK, "successfully set klog.logging.verbosity to 3", false},
		{false, http.MethodPut, "10", http.StatusMethodNotAllowed, "flags endpoint is disabled.", false},
		{true, http.MethodPut, "10", http.StatusOK, "successfully set klog.logging.verbosity to 10", true},
	} {
		config.DebugFlags = c.enabled
		w := httptest.NewRecorder()
		config.verbosityHandler().ServeHTTP(w, httptest.NewRequest(c.method, "/debug/flags/v", strings.NewReader(c.body)))
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.answer) {
			t.Errorf("%s %.20s: got %d, %q, want %d, %q", c.method, c.body, w.Code, w.Body, c.code, c.answer)
		}
		if log.Enabled(t.Context(), slog.LevelDebug) != c.steps {
			t.Errorf("steps are logged after %s %.20s: got %v, want %v", c.method, c.body, !c.steps, c.steps)
		}
	}
}
