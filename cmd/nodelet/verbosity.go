package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/nodelet/nodelet/kube/server"
)

// eachStep is the verbosity from which on each step is logged.
const eachStep = 4

// verbosity is how much is logged. It may be changed at any time.
type verbosity struct{ slog.LevelVar }

func (v *verbosity) set(to uint64) {
	if to >= eachStep {
		v.Set(slog.LevelDebug)
		return
	}
	v.Set(slog.LevelInfo)
}

// debugFlags sets the verbosity by way of the node's API: PUT with a number, in the kubelet's words (enableDebugFlagsHandler). It holds
// until the agent ends.
func (n *nodelet) debugFlags() server.Mount {
	m := server.Mount{Path: "/debug/flags/v", Debug: true, Handler: n.verbosity}
	if !n.cfg.Server.DebugFlags {
		m.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "flags endpoint is disabled.", http.StatusMethodNotAllowed)
		})
	}
	return m
}

// ServeHTTP sets the verbosity to the number that is the body of a PUT. The line's end that an editor has put behind it does no harm.
func (v *verbosity) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
	v.set(to)
	w.Header().Set("Content-Type", "text/plain")
	_, _ = fmt.Fprintf(w, "successfully set klog.logging.verbosity to %d", to)
}
