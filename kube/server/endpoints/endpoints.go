package endpoints

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/nodelet/nodelet/kube/server"
)

// Config says which endpoints are served, and what they show.
type Config struct {
	// Healthz answers /healthz and what is below it.
	Healthz http.Handler
	// Configuration returns what /configz shows.
	Configuration func() any
	// SystemLogs turns /logs/ on, SystemLogQuery its queries for journals. Logs is the log directory of the machine.
	SystemLogs     bool
	SystemLogQuery bool
	Logs           Dir
	// DebugFlags allows clients to change Verbosity.
	DebugFlags bool
	Verbosity  *Verbosity
	// Profiling turns the profiles of the Go runtime on.
	Profiling bool
	// Flagz turns /flagz on, which shows Flags: the values of all flags, by name.
	Flagz bool
	Flags map[string]string
	// Statusz turns /statusz on, which shows Version and the paths that are served.
	Statusz bool
	Version string
}

// Mounts returns the endpoints that are on. others are all other mounts of the server; /statusz lists them.
func Mounts(c Config, others []server.Mount) []server.Mount {
	healthz := []string{"healthz", "proxy"}
	configz := []string{"configz", "proxy"}
	logs := c.logsHandler()
	all := []server.Mount{
		{Path: "/healthz", Access: healthz, ReadOnly: true, Handler: c.Healthz},
		{Path: "/healthz/", Access: healthz, ReadOnly: true, Handler: c.Healthz},
		{Path: "/configz", Access: configz, Debug: true, Handler: configHandler(c.Configuration)},
		{Path: "/logs", Access: []string{"log"}, Debug: true, Handler: logs},
		{Path: logsPath, Access: []string{"log"}, Debug: true, Handler: logs},
		{Path: "/debug/flags/v", Debug: true, Handler: c.verbosityHandler()},
	}
	if c.Flagz {
		all = append(all, server.Mount{Path: "/flagz", Access: []string{"configz"}, Handler: flagsPage(c.Flags)})
	}
	if c.Statusz {
		page := statusPage(time.Now(), c.Version, paths(slices.Concat(all, others)))
		all = append(all, server.Mount{Path: "/statusz", Access: []string{"statusz"}, Handler: page})
	}
	if c.Profiling {
		all = append(all, profiles()...)
	}
	return all
}

func configHandler(configuration func() any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"kubeletconfig": configuration()})
	})
}

// disabled answers as the kubelet does for an endpoint that the configuration turns off.
func disabled(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, name+" endpoint is disabled.", http.StatusMethodNotAllowed)
	})
}

// paths returns the paths of the mounts and of what the server itself serves, sorted.
func paths(mounts []server.Mount) []string {
	all := []string{
		"/allocatedPods/", "/attach/", "/checkpoint/", "/containerLogs/", "/exec/", "/pods", "/portForward/", "/run/",
		"/runningpods/",
	}
	for _, m := range mounts {
		all = append(all, m.Path)
	}
	slices.Sort(all)
	return all
}
