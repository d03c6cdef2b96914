package server_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/server"
)

// FuzzRequest checks that an unauthenticated request gets 401 and does not reach the agent.
func FuzzRequest(f *testing.F) {
	for _, path := range []string{"/pods", "/exec/ns/pod/app", "//exec/../pods", "/metrics/%2e%2e", "*", "", "/logs/",
		"/containerLogs/a/b/c"} {
		f.Add("GET", path, "output=1&tailLines=1", "Bearer x")
	}
	f.Fuzz(func(t *testing.T, method, path, query, authorization string) {
		s := handlerOnly(t)
		r := &http.Request{
			Method:     method,
			URL:        &url.URL{Path: path, RawQuery: query},
			Header:     http.Header{},
			RemoteAddr: "192.0.2.1:1",
			Proto:      "HTTP/1.1",
			ProtoMajor: 1,
		}
		r.Header.Set("Authorization", authorization)
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		if w.Code != 401 || w.Header().Get("Location") != "" {
			t.Errorf("%s %q %q: got %d, want 401", method, path, query, w.Code)
		}
		if asked := s.agent.wasAsked(); asked != nil {
			t.Errorf("%s %q: got the requests %q to the agent, want none", method, path, asked)
		}
	})
}

// FuzzAllowed checks that every request of a caller with all permissions is answered, and that the permission to get
// one subresource never leads to an exec.
func FuzzAllowed(f *testing.F) {
	for _, path := range []string{"/pods", "/exec/ns/pod/app", "/metrics/../exec/ns/pod/app", "/exec//pod/app",
		"/containerLogs/a/b/c", "/portForward/a/b", "/checkpoint/a/b/c"} {
		f.Add("GET", path, "output=1&tailLines=1&port=1")
	}
	f.Fuzz(func(t *testing.T, method, path, query string) {
		s := handlerOnly(t)
		r := &http.Request{
			Method:     method,
			URL:        &url.URL{Path: path, RawQuery: query},
			Header:     http.Header{},
			Proto:      "HTTP/1.1",
			ProtoMajor: 1,
		}
		r.Header.Set("Authorization", "Bearer reader")
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		if w.Code >= 300 && w.Code < 400 || w.Code < 200 {
			t.Errorf("%s %q %q: got %d, want no redirect and no interim answer", method, path, query, w.Code)
		}
		for _, asked := range s.agent.wasAsked() {
			if !strings.HasPrefix(asked, "logs ") {
				t.Errorf("%s %q with the right to read: got %q, want logs only", method, path, asked)
			}
		}
	})
}

// shared is a cluster for all runs of a fuzz target, in which the token "reader" may read everything.
var shared = sync.OnceValue(func() *client.Client {
	c := &cluster{tokens: map[string]string{"reader": "reader"}}
	for _, sub := range []string{"proxy", "pods", "metrics", "checkpoint"} {
		c.rights = append(c.rights, "reader get "+sub)
	}
	api, err := client.New(&rest.Config{Host: httptest.NewServer(c).URL}, -1, 0, "fuzz")
	if err != nil {
		panic(err)
	}
	return api
})

// one is a server without a connection.
type one struct {
	handler http.Handler
	agent   *fakeAgent
}

func handlerOnly(t *testing.T) *one {
	t.Helper()
	agent := &fakeAgent{}
	srv, err := server.New(server.Config{
		Node:       "node-1",
		Tokens:     shared().Authentication,
		Access:     shared().Authorization,
		TokenTTL:   time.Minute,
		AllowedTTL: time.Minute,
		DeniedTTL:  time.Minute,
		Agent:      agent,
		Debug:      true,
		Metrics:    noMetrics{},
		Log:        slog.New(slog.DiscardHandler),
		Mounts: []server.Mount{
			{Path: "/metrics", Access: []string{"metrics"}, Handler: echo},
			{Path: "/metrics/", Access: []string{"metrics"}, Handler: echo},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &one{handler: srv.Handler(), agent: agent}
}
