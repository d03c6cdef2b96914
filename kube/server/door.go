package server

import (
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// door lets a request in or refuses it.
type door struct {
	who      *identifier
	may      *judge
	refusals *refusals
}

// pass tells whether a request may go on to its route. One that may not has had its answer: 401 where it is not known
// who asks, 403 where they may not, 500 where the API server could not be asked. The connection of one that is refused
// is closed.
func (d *door) pass(w http.ResponseWriter, r *http.Request, to found) bool {
	who, err := d.who.identify(r)
	if err != nil {
		d.refuse(w, r, http.StatusUnauthorized, "Unauthorized", "", err)
		return false
	}
	verb := to.verb
	if verb == "" {
		verb = verbs[r.Method]
	}
	allowed, err := d.may.allows(r.Context(), who, verb, to.access)
	switch {
	case err != nil:
		text := fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", who.Name, verb, to.access)
		d.refuse(w, r, http.StatusInternalServerError, text, who.Name, err)
	case !allowed:
		text := fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)\n", who.Name, verb, to.access)
		d.refuse(w, r, http.StatusForbidden, text, who.Name, fmt.Errorf("needs %s on any of nodes/%v", verb, to.access))
	}
	// What let the caller in is no business of the handlers and of the runtime behind them.
	r.Header.Del("Authorization")
	return err == nil && allowed
}

// verbs are the API's names for what a method does.
var verbs = map[string]string{
	http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
}

func (d *door) refuse(w http.ResponseWriter, r *http.Request, code int, text, user string, why error) {
	d.refusals.log(r, code, user, why)
	w.Header().Set("Connection", "close")
	http.Error(w, text, code)
}

const (
	// refusalsEach is how many refusals are logged in each span of refusalsSpan.
	refusalsEach = 20
	refusalsSpan = 10 * time.Second
)

// refusals logs who was turned away, so many of them that somebody who hammers at the door cannot fill the disk.
type refusals struct {
	out *slog.Logger

	mu      sync.Mutex
	since   time.Time
	count   int
	skipped int
}

func newRefusals(log *slog.Logger) *refusals { return &refusals{out: log} }

// log writes a line without query (it may hold the words of a command) and headers (they hold credentials).
func (l *refusals) log(r *http.Request, code int, user string, why error) {
	skipped, ok := l.take(time.Now())
	if !ok {
		return
	}
	l.out.Warn("request refused", "code", code, "from", r.RemoteAddr, "user", short(user), "method", short(r.Method),
		"path", short(r.URL.Path), "why", short(why.Error()))
	if skipped > 0 {
		l.out.Warn("more requests were refused than are logged", "not logged", skipped)
	}
}

func (l *refusals) take(now time.Time) (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) >= refusalsSpan {
		skipped = l.skipped
		l.since, l.count, l.skipped = now, 0, 0
	}
	if l.count++; l.count > refusalsEach {
		l.skipped++
		return 0, false
	}
	return skipped, true
}

// short cuts what strangers sent.
func short(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
