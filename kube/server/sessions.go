package server

import (
	"net/http"
	"sync"
)

// The default bounds of open sessions: in all, and of one pod. A session costs the agent about 50 KiB. One that is
// translated to SPDY counts as several: compression makes it cost about 1 MiB, and if the client does not read, the
// library holds 50 frames of 32 KiB of each of the command's two outputs. So all can hold 1.5 GiB, those of a pod a
// quarter of that.
const (
	maxSessions       = 4096
	maxPodSessions    = 1024
	translationWeight = 12
)

// SessionLimits bounds how many sessions (exec, attach, port-forward, logs) are open, in all and of one pod. Further
// ones are refused with status 429. 0 means 4096 and 1024.
type SessionLimits struct{ All, PerPod int }

// sessions counts what authorized callers keep open for as long as they like: exec, attach, port-forward and logs. The
// bounds keep them from exhausting the agent's memory, and the callers of one pod or of some namespaces from shutting
// out those of others.
type sessions struct {
	all, perPod int

	mu   sync.Mutex
	open int
	of   map[string]int // by namespace, and by namespace/name; never 0
}

// namespaceShare is how many times the free sessions a namespace may have. It leaves some free however many namespaces
// take what they can: a quarter of all is free if one does, a seventh if two do.
const namespaceShare = 3

// begin counts a session as weight ones. Call end when it ends. The error is an *Error with status 429.
func (s *sessions) begin(at place, weight int) (end func(), err error) {
	pod := at.namespace + "/" + at.pod
	s.mu.Lock()
	defer s.mu.Unlock()
	tooMany := func(where string, n int) error {
		return Errorf(http.StatusTooManyRequests, "too many open sessions %s: %d; close some or try again", where, n)
	}
	switch {
	case s.open+weight > s.all:
		return nil, tooMany("on this node", s.open)
	case s.of[pod]+weight > s.perPod:
		return nil, tooMany("of pod "+short(pod), s.of[pod])
	case s.of[at.namespace]+weight > namespaceShare*(s.all-s.open):
		return nil, tooMany("in namespace "+short(at.namespace), s.of[at.namespace])
	}
	s.add(at, weight)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.add(at, -weight)
	}, nil
}

// add changes the counts. s.mu is held.
func (s *sessions) add(at place, weight int) {
	s.open += weight
	for _, key := range []string{at.namespace, at.namespace + "/" + at.pod} {
		if s.of[key] += weight; s.of[key] == 0 {
			delete(s.of, key)
		}
	}
}

// bounded serves a session unless there are too many.
func (s *Server) bounded(serve handler) handler {
	return func(w http.ResponseWriter, r *http.Request, at place) {
		end, err := s.sessions.begin(at, 1)
		if err != nil {
			s.fail(w, err)
			return
		}
		defer end()
		connOf(r.Context()).leave()
		serve(w, r, at)
	}
}
