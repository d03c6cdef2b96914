package server

import (
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// authFilter authenticates and authorizes requests.
type authFilter struct {
	authn     *authenticator
	authorize authorizer
	refusals  *refusals
}

// pass reports whether a request may reach its route. If not, it has answered: 401 if the caller could not be
// authenticated, 403 if the caller is not allowed to, 500 if the API server could not be asked. It closes the
// connection then.
func (f *authFilter) pass(w http.ResponseWriter, r *http.Request, to found) bool {
	who, err := f.authn.authenticate(r)
	if err != nil {
		f.refuse(w, r, http.StatusUnauthorized, "Unauthorized", "", err)
		return false
	}
	verb := to.verb
	if verb == "" {
		verb = verbs[r.Method]
	}
	allowed, err := f.authorize(r.Context(), who, verb, to.access)
	switch {
	case err != nil:
		text := fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource(s)=%v)",
			who.Name, verb, to.access)
		f.refuse(w, r, http.StatusInternalServerError, text, who.Name, err)
	case !allowed:
		text := fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)\n", who.Name, verb, to.access)
		f.refuse(w, r, http.StatusForbidden, text, who.Name, fmt.Errorf("needs %s on any of nodes/%v", verb, to.access))
	}
	// Neither the handlers nor the runtime may see the credentials.
	r.Header.Del("Authorization")
	return err == nil && allowed
}

// verbs are the verbs of the API for HTTP methods.
var verbs = map[string]string{
	http.MethodGet:    "get",
	http.MethodPost:   "create",
	http.MethodPut:    "update",
	http.MethodPatch:  "patch",
	http.MethodDelete: "delete",
}

func (f *authFilter) refuse(w http.ResponseWriter, r *http.Request, code int, text, user string, why error) {
	f.refusals.log(r, code, user, why)
	w.Header().Set("Connection", "close")
	answerError(w, code, text)
}

const (
	// refusalsEach is how many refusals are logged in each span of refusalsSpan.
	refusalsEach = 20
	refusalsSpan = 10 * time.Second
)

// refusals logs refused requests, at a bounded rate so that no client can fill the disk.
type refusals struct {
	out *slog.Logger

	mu      sync.Mutex
	since   time.Time
	count   int
	skipped int
}

// log leaves out the query, which may contain a command, and the headers, which contain credentials.
func (l *refusals) log(r *http.Request, code int, user string, why error) {
	skipped, ok := l.take(time.Now())
	if !ok {
		return
	}
	l.out.Warn("request refused", "code", code, "from", r.RemoteAddr, "user", short(user), "method", short(r.Method),
		"path", short(r.URL.Path), "err", short(why.Error()))
	if skipped > 0 {
		l.out.Warn("more requests were refused than logged", "skipped", skipped)
	}
}

func (l *refusals) take(now time.Time) (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) >= refusalsSpan {
		skipped = l.skipped
		l.since = now
		l.count, l.skipped = 0, 0
	}
	if l.count++; l.count > refusalsEach {
		l.skipped++
		return 0, false
	}
	return skipped, true
}

// short truncates what a client has sent.
func short(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
