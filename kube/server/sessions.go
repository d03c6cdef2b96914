package server

import (
	"net/http"
	"sync"
)

// The default bounds of open sessions: in all, and of one pod. A session costs the agent about 50 KiB. One that is
// translated to SPDY counts as several, because compression makes it cost about 1 MiB.
const (
	maxSessions       = 4096
	maxPodSessions    = 1024
	translationWeight = 4
)

// SessionLimits bounds how many sessions (exec, attach, port-forward, logs) are open, in all and of one pod. Further
// ones are refused with status 429. 0 means 4096 and 1024.
type SessionLimits struct{ All, PerPod int }

// sessions counts what authorized callers keep open for as long as they like: exec, attach, port-forward and logs. The
// bounds keep them from exhausting the agent's memory, and the callers of one pod from shutting out those of others.
type sessions struct {
	all, perPod int

	mu    sync.Mutex
	open  int
	ofPod map[string]int // by namespace/name; never 0
}

// begin counts a session as weight ones. Call end when it ends. The error is an *Error with status 429.
func (s *sessions) begin(at place, weight int) (end func(), err error) {
	pod := at.namespace + "/" + at.pod
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.open+weight > s.all:
		return nil, Errorf(http.StatusTooManyRequests, "too many open sessions on this node: %d; close some or try again",
			s.open)
	case s.ofPod[pod]+weight > s.perPod:
		return nil, Errorf(http.StatusTooManyRequests, "too many open sessions of pod %s: %d; close some or try again",
			short(pod), s.ofPod[pod])
	}
	s.open += weight
	s.ofPod[pod] += weight
	return func() { s.end(pod, weight) }, nil
}

func (s *sessions) end(pod string, weight int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open -= weight
	if s.ofPod[pod] -= weight; s.ofPod[pod] == 0 {
		delete(s.ofPod, pod)
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
