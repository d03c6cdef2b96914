package server_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/nodelet/nodelet/kube/server"
)

// followers are clients that follow logs.
type followers struct {
	*stand
	admin     *http.Client
	all       sync.WaitGroup
	following chan struct{}
	release   chan struct{} // closed: all logs end
}

func newFollowers(t *testing.T, limits server.SessionLimits) *followers {
	t.Helper()
	s := newStand(t, func(c *server.Config) { c.Sessions = limits })
	f := &followers{stand: s, admin: s.client(s.ca.issue(t, "admin", []string{"system:masters"}, nil)),
		following: make(chan struct{}), release: make(chan struct{})}
	s.agent.logs = func(ctx context.Context, _, _ io.Writer) error {
		select {
		case f.following <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-f.release:
		case <-ctx.Done():
		}
		return nil
	}
	t.Cleanup(f.end)
	return f
}

// follow follows the log of a pod and waits until that is a session.
func (f *followers) follow(pod string) {
	f.t.Helper()
	path := "/containerLogs/" + pod + "/app?follow=true"
	if code, body := f.get(path); code != 0 {
		f.t.Fatalf("%s: got %d %q, want a session", path, code, body)
	}
}

// refused checks that a request is refused because of too many sessions.
func (f *followers) refused(path, why string) {
	f.t.Helper()
	if code, body := f.get(path); code != http.StatusTooManyRequests || !strings.Contains(body, why) {
		f.t.Fatalf("%s: got %d %q, want 429 with %q", path, code, body, why)
	}
}

// get makes a request and returns the status and body of a refusal, or zero if it has become a session.
func (f *followers) get(path string) (int, string) {
	refusal := make(chan string, 1)
	var code int
	f.all.Go(func() {
		var body string
		if code, body = f.ask(f.admin, http.MethodGet, path, nil); code != http.StatusOK {
			refusal <- body
		}
	})
	select {
	case <-f.following:
		return 0, ""
	case body := <-refusal:
		return code, body
	}
}

// end ends all logs.
func (f *followers) end() {
	close(f.release)
	f.all.Wait()
	f.release = make(chan struct{})
}

// TestSessionsAreBounded follows logs up to the bound of a pod and up to that of the node. Further ones are refused,
// other requests are not, and the end of a session allows another.
func TestSessionsAreBounded(t *testing.T) {
	f := newFollowers(t, server.SessionLimits{All: 3, PerPod: 2})
	f.follow("ns/busy")
	f.follow("ns/busy")
	f.refused("/containerLogs/ns/busy/app?follow=true", "sessions of pod ns/busy")
	f.refused("/exec/ns/busy/app?output=1&command=id", "sessions of pod ns/busy")
	f.follow("ns/other")
	f.refused("/attach/ns/third/app?output=1", "sessions on this node")
	f.refused("/portForward/ns/third", "sessions on this node")
	if code, _ := f.ask(f.admin, http.MethodGet, "/metrics", nil); code != http.StatusOK {
		t.Errorf("metrics beside too many sessions: got %d, want 200", code)
	}
	f.end()
	f.follow("ns/busy")
}

// TestSessionsOfNamespace checks that the sessions of one namespace, of however many pods, and those of two leave some
// to others.
func TestSessionsOfNamespace(t *testing.T) {
	f := newFollowers(t, server.SessionLimits{All: 8, PerPod: 2})
	for _, pod := range []string{"greedy/a", "greedy/a", "greedy/b", "greedy/b", "greedy/c", "greedy/c"} {
		f.follow(pod)
	}
	f.refused("/containerLogs/greedy/d/app?follow=true", "sessions in namespace greedy")
	f.refused("/exec/greedy/d/app?output=1&command=id", "sessions in namespace greedy")
	f.follow("second/a")
	f.refused("/containerLogs/greedy/d/app?follow=true", "sessions in namespace greedy")
	f.follow("third/a")
	f.refused("/containerLogs/fourth/a/app?follow=true", "sessions on this node")
	f.end()
	f.follow("greedy/d")
}
