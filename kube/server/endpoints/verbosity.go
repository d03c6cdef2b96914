package endpoints

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/nodelet/nodelet/internal/loglevel"
)

const (
	// podsVerbosity is the lowest verbosity at which the start and the end of each pod are logged.
	podsVerbosity = 2
	// debugVerbosity is the lowest verbosity at which each step is logged.
	debugVerbosity = 4
)

// Verbosity is the level of the log. It may be changed at any time; as a handler it changes with each PUT.
type Verbosity struct{ slog.LevelVar }

// SetVerbosity sets the level to what the kubelet's flag --v means.
func (v *Verbosity) SetVerbosity(to uint64) {
	switch {
	case to >= debugVerbosity:
		v.Set(slog.LevelDebug)
	case to >= podsVerbosity:
		v.Set(loglevel.Pods)
	default:
		v.Set(slog.LevelInfo)
	}
}

// verbosityHandler changes the verbosity until the agent stops (enableDebugFlagsHandler).
func (c *Config) verbosityHandler() http.Handler {
	if !c.DebugFlags {
		return disabled("flags")
	}
	return c.Verbosity
}

// ServeHTTP sets the verbosity to the number in the body of a PUT; a final newline is ignored. The texts are the
// kubelet's.
func (v *Verbosity) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		http.Error(w, "unsupported http method", http.StatusNotAcceptable)
		return
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, 100)) // more than any number needs
	var to uint64
	if err == nil {
		to, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 31)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	v.SetVerbosity(to)
	w.Header().Set("Content-Type", "text/plain")
	_, _ = fmt.Fprintf(w, "successfully set klog.logging.verbosity to %d", to)
}
