package main

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/cri/logs"
	"github.com/nodelet/nodelet/kube/server"
)

// nodeLogs is where the machine's logs lie.
const nodeLogs = "/var/log"

// zpage is a page for people in the form that Kubernetes' components share.
func zpage(name string, body func(w io.Writer)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "\nkubelet %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility "+
			"guarantees and is for debugging purposes only.\n", name)
		body(w)
	})
}

// statusz says what runs here, since when and with which paths (KEP-4827).
func statusz(began time.Time, paths []string) http.Handler {
	return zpage("statusz", func(w io.Writer) {
		fmt.Fprintf(w, "\nStarted: %s\nUp: %s\nGo version: %s\nBinary version: %s\nPaths: %s\n",
			began.UTC().Format(time.UnixDate), time.Since(began).Truncate(time.Second), runtime.Version(), config.KubeletVersion(), strings.Join(paths, " "))
	})
}

// flagz lists the flags that were given and their values (KEP-4828); /configz has all that is in force.
func flagz(flags map[string]string) http.Handler {
	return zpage("flagz", func(w io.Writer) {
		for _, name := range slices.Sorted(maps.Keys(flags)) {
			fmt.Fprintf(w, "%s=%s\n", name, flags[name])
		}
	})
}

// systemLogs serves the machine's logs, or says that they are off.
func (n *nodelet) systemLogs() server.Mount {
	h := logs.NodeFiles("/logs/", nodeLogs)
	if n.cfg.Server.SystemLogsQuery {
		h = logs.NodeQuery("/logs/", nodeLogs)
	}
	if !n.cfg.Server.SystemLogs {
		h = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "logs endpoint is disabled.", http.StatusMethodNotAllowed)
		})
	}
	return server.Mount{Path: "/logs/", Access: []string{"log"}, Debug: true, Handler: h}
}
