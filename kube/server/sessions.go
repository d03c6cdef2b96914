package server

import (
	"net/http"
	"sync"
)

// The default bounds of open sessions: in all, and of one pod. A session costs the agent about 50 KiB.
const (
	maxSessions    = 4096
	maxPodSessions = 1024
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

// begin counts a session. Call end when it ends. The error is an *Error with status 429.
func (s *sessions) begin(at place) (end func(), err error) {
	pod := at.namespace + "/" + at.pod
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.open >= s.all:
		return nil, Errorf(http.StatusTooManyRequests, "too many open sessions on this node: %d; close some or try again",
			s.open)
	case s.ofPod[pod] >= s.perPod:
		return nil, Errorf(http.StatusTooManyRequests, "too many open sessions of pod %s: %d; close some or try again",
			short(pod), s.ofPod[pod])
	}
	s.open++
	s.ofPod[pod]++
	return func() { s.end(pod) }, nil
}

func (s *sessions) end(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.ofPod[pod]--; s.ofPod[pod] == 0 {
		delete(s.ofPod, pod)
	}
}

// bounded serves a session unless there are too many.
func (s *Server) bounded(serve handler) handler {
	return func(w http.ResponseWriter, r *http.Request, at place) {
		end, err := s.sessions.begin(at)
		if err != nil {
			s.fail(w, err)
			return
		}
		defer end()
		serve(w, r, at)
	}
}
