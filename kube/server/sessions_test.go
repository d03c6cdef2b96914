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

// TestSessionsAreBounded follows logs up to the bound of a pod and up to that of the node. Further ones are refused,
// other requests are not, and the end of a session allows another.
func TestSessionsAreBounded(t *testing.T) {
	s := newStand(t, func(c *server.Config) { c.Sessions = server.SessionLimits{All: 3, PerPod: 2} })
	admin := s.client(s.ca.issue(t, "admin", []string{"system:masters"}, nil))
	following, release := make(chan struct{}), make(chan struct{})
	s.agent.logs = func(ctx context.Context, _, _ io.Writer) error {
		following <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	}
	var all sync.WaitGroup
	follow := func(path string) {
		all.Go(func() {
			if code, body := s.ask(admin, http.MethodGet, path, nil); code != http.StatusOK {
				t.Errorf("%s: got %d %q, want 200", path, code, body)
			}
		})
		<-following
	}
	refused := func(path, why string) {
		t.Helper()
		code, body := s.ask(admin, http.MethodGet, path, nil)
		if code != http.StatusTooManyRequests || !strings.Contains(body, why) {
			t.Errorf("%s: got %d %q, want 429 with %q", path, code, body, why)
		}
	}
	follow("/containerLogs/ns/busy/app?follow=true")
	follow("/containerLogs/ns/busy/app?follow=true")
	refused("/containerLogs/ns/busy/app?follow=true", "sessions of pod ns/busy")
	refused("/exec/ns/busy/app?output=1&command=id", "sessions of pod ns/busy")
	follow("/containerLogs/ns/other/app?follow=true")
	refused("/attach/ns/third/app?output=1", "sessions on this node")
	refused("/portForward/ns/third", "sessions on this node")
	if code, _ := s.ask(admin, http.MethodGet, "/metrics", nil); code != http.StatusOK {
		t.Errorf("metrics beside too many sessions: got %d, want 200", code)
	}
	close(release)
	all.Wait()
	release = make(chan struct{})
	follow("/containerLogs/ns/busy/app?follow=true")
	close(release)
	all.Wait()
}
