package endpoints

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Check is one named part of the agent's health.
type Check struct {
	Name string       // lower case, without slashes
	Run  func() error // returns nil if the part is healthy; must not block
}

// HealthzHandler serves /healthz, and /healthz/NAME for one check: 200 with "ok", or 500 with the names of the checks
// that fail. ?verbose lists all checks, ?exclude=NAME skips one. The response has no reasons, as every client that can
// reach the port can read it; they are in the agent's log. The handler serves nothing else, in particular no profiles
// (CVE-2019-11248). checked, unless it is nil, is called with the result of each check that a request runs.
func HealthzHandler(checks []Check, checked func(name string, healthy bool)) http.Handler {
	for i, c := range checks {
		if checked != nil {
			checks[i].Run = func() error {
				err := c.Run()
				checked(c.Name, err == nil)
				return err
			}
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, req *http.Request) {
		serveChecks(w, req, checks)
	})
	for _, c := range checks {
		mux.HandleFunc("GET /healthz/"+c.Name, func(w http.ResponseWriter, req *http.Request) {
			serveChecks(w, req, []Check{c})
		})
	}
	return mux
}

func serveChecks(w http.ResponseWriter, req *http.Request, checks []Check) {
	query := req.URL.Query()
	_, verbose := query["verbose"]
	var report strings.Builder
	failed := false
	for _, c := range checks {
		switch {
		case slices.Contains(query["exclude"], c.Name):
			fmt.Fprintf(&report, "[+]%s excluded: ok\n", c.Name)
		case c.Run() != nil:
			fmt.Fprintf(&report, "[-]%s failed: reason withheld\n", c.Name)
			failed = true
		default:
			fmt.Fprintf(&report, "[+]%s ok\n", c.Name)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case failed:
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintf(w, "%shealthz check failed\n", &report)
	case verbose:
		fmt.Fprintf(w, "%shealthz check passed\n", &report)
	default:
		fmt.Fprint(w, "ok")
	}
}
