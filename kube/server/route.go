package server

import (
	"net/http"
	"net/url"
	"path"
	"slices"
	"sort"
	"strings"
)

// route is the handler of a path and the permissions that it needs.
type route struct {
	// prefix is the path, to which a client may append a slash, or, if it ends with a slash, the beginning of the paths
	// below it.
	prefix string
	// access are subresources of nodes. Permission for one of them is enough.
	access []string
	// verb, if set, is the verb that the caller must be allowed to use, whatever the method is: a WebSocket handshake is a
	// GET, but exec needs create.
	verb     string
	methods  []string
	debug    bool
	readOnly bool
	handler  handler
}

// handler serves an authorized request for what its path names.
type handler func(w http.ResponseWriter, r *http.Request, at place)

// place is the pod and container that a path names.
type place struct{ namespace, pod, uid, container string }

const proxy = "proxy"

var (
	reading = []string{http.MethodGet, http.MethodHead}
	streams = []string{http.MethodGet, http.MethodPost}
	acting  = []string{http.MethodPost}
)

// table returns all routes, the longest prefix first.
func (s *Server) table() []route {
	pods := []string{"pods", proxy}
	all := []route{
		{prefix: "/pods", access: pods, methods: reading, readOnly: true, handler: s.large(s.list(Agent.Pods))},
		{prefix: "/allocatedPods", access: pods, methods: reading, debug: true, handler: s.large(s.list(allocated))},
		{prefix: "/allocatedPods/", access: pods, methods: reading, debug: true, handler: s.serveAllocatedPod},
		{prefix: "/runningpods", access: pods, methods: reading, debug: true, handler: s.large(s.list(Agent.Running))},
		{prefix: "/containerLogs/", methods: reading, debug: true, handler: s.bounded(s.serveLogs)},
		{prefix: "/exec/", verb: "create", methods: streams, debug: true, handler: s.bounded(s.serveExec)},
		{prefix: "/attach/", verb: "create", methods: streams, debug: true, handler: s.bounded(s.serveAttach)},
		{prefix: "/portForward/", verb: "create", methods: streams, debug: true,
			handler: s.bounded(s.servePortForward)},
		{prefix: "/run/", verb: "create", methods: acting, debug: true, handler: s.bounded(s.serveRun)},
		{prefix: "/checkpoint/", access: []string{"checkpoint"}, methods: acting, debug: true, handler: s.serveCheckpoint},
	}
	for _, m := range s.cfg.Mounts {
		serve := func(w http.ResponseWriter, r *http.Request, _ place) { m.Handler.ServeHTTP(w, r) }
		if m.Large {
			serve = s.large(serve)
		}
		all = append(all, route{prefix: m.Path, access: m.Access, debug: m.Debug, readOnly: m.ReadOnly, handler: serve})
	}
	sort.SliceStable(all, func(i, j int) bool { return len(all[i].prefix) > len(all[j].prefix) })
	return all
}

// found is the route of a request, with what its path names.
type found struct {
	route
	at place
	// off is set if the configuration has turned the route off.
	off bool
}

// find returns the route of a request. A path that is not in the table needs the permission proxy, and is then not
// found.
func (s *Server) find(r *http.Request) found {
	nowhere := found{route: route{access: []string{proxy}, handler: missing}}
	p, plain := plainPath(r)
	if !plain {
		return nowhere
	}
	for _, to := range s.routes {
		rest, ok := to.match(p)
		if !ok {
			continue
		}
		if len(to.access) == 0 {
			to.access = []string{proxy}
		}
		return found{route: to, at: readPlace(to.prefix, rest), off: to.debug && !s.cfg.Debug}
	}
	return nowhere
}

// match reports whether a path is that of the route, and returns what follows the prefix.
func (r *route) match(path string) (rest string, ok bool) {
	if strings.HasSuffix(r.prefix, "/") {
		rest, ok = strings.CutPrefix(path, r.prefix)
		return rest, ok && rest != ""
	}
	return "", strings.TrimSuffix(path, "/") == r.prefix
}

// escapes are those that a client may leave out (RFC 3986), and Go does not.
var escapes = strings.NewReplacer("!", "%21", "'", "%27", "(", "%28", ")", "%29", "*", "%2A", "[", "%5B", "]", "%5D")

// plainPath returns the path of a request and whether it is in canonical form: without empty or dotted segments and
// needless escapes. The permission for one path must never lead to another.
func plainPath(r *http.Request) (string, bool) {
	p := r.URL.Path
	canonical := url.URL{Path: p}
	switch {
	case !strings.HasPrefix(p, "/"), strings.ContainsAny(p, "\x00\\"),
		r.URL.RawPath != "" && escapes.Replace(r.URL.RawPath) != canonical.EscapedPath():
		return "", false
	case p == "/":
		return p, true
	}
	return p, path.Clean(p) == strings.TrimSuffix(p, "/")
}

// readPlace parses namespace/pod[/uid]/container, for pods alone namespace/pod[/uid]. It is empty for any other
// number of segments; the handlers refuse an empty name.
func readPlace(prefix, rest string) place {
	seg := strings.Split(rest, "/")
	if prefix == "/portForward/" || prefix == "/allocatedPods/" {
		seg = append(seg, "")
	}
	switch len(seg) {
	case 3:
		return place{namespace: seg[0], pod: seg[1], container: seg[2]}
	case 4:
		return place{namespace: seg[0], pod: seg[1], uid: seg[2], container: seg[3]}
	}
	return place{}
}

// handle serves an authorized request.
func (f *found) handle(w http.ResponseWriter, r *http.Request) {
	switch {
	case f.off:
		http.Error(w, "Debug endpoints are disabled.", http.StatusMethodNotAllowed)
	case f.methods != nil && !slices.Contains(f.methods, r.Method):
		w.Header().Set("Allow", strings.Join(f.methods, ", "))
		http.Error(w, "Method not allowed.", http.StatusMethodNotAllowed)
	default:
		f.handler(w, r, f.at)
	}
}

func missing(w http.ResponseWriter, _ *http.Request, _ place) {
	http.Error(w, "404: Page Not Found", http.StatusNotFound)
}
