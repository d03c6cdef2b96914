package endpoints

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"
)

// page is a status page in the format that the components of Kubernetes share.
func page(name string, body func(w io.Writer)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "\nkubelet %s\nWarning: This endpoint is not meant to be machine parseable, "+
			"has no formatting compatibility guarantees and is for debugging purposes only.\n", name)
		body(w)
	})
}

// statusPage shows the program, its start time and its paths (KEP-4827).
func statusPage(began time.Time, version string, paths []string) http.Handler {
	return page("statusz", func(w io.Writer) {
		fmt.Fprintf(w, "\nStarted: %s\nUp: %s\nGo version: %s\nBinary version: %s\nPaths: %s\n",
			began.UTC().Format(time.UnixDate), time.Since(began).Truncate(time.Second), runtime.Version(), version,
			strings.Join(paths, " "))
	})
}

// flagsPage lists the flags that were given and their values (KEP-4828); /configz shows the whole configuration.
func flagsPage(flags map[string]string) http.Handler {
	return page("flagz", func(w io.Writer) {
		for _, name := range slices.Sorted(maps.Keys(flags)) {
			fmt.Fprintf(w, "%s=%s\n", name, flags[name])
		}
	})
}
