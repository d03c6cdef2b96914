package server_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/test/faulttest"
)

// rooted is a stand with a client that may everything.
func rooted(t *testing.T, change func(*server.Config)) (*stand, *http.Client) {
	s := newStand(t, change)
	return s, s.client(s.ca.issue(t, "root", []string{"system:masters"}, nil))
}

// TestLogOptions checks which options reach the agent, and which are refused.
func TestLogOptions(t *testing.T) {
	s, c := rooted(t, nil)
	for _, q := range []struct {
		query string
		code  int
		body  string
		asked string
	}{
		{"", 200, "out\nerr\n", `{"stream":"All"}`},
		{"follow=true&previous&timestamps=1", 200, "out\nerr\n",
			`{"follow":true,"previous":true,"timestamps":true,"stream":"All"}`},
		{"follow=False&previous=0", 200, "out\nerr\n", `{"stream":"All"}`},
		{"tailLines=0&limitBytes=1&sinceSeconds=1", 200, "out\nerr\n",
			`{"sinceSeconds":1,"tailLines":0,"limitBytes":1,"stream":"All"}`},
		{"tail=7", 200, "out\nerr\n", `{"tailLines":7,"stream":"All"}`},
		{"tail=all&tailLines=7", 200, "out\nerr\n", `{"stream":"All"}`},
		{"sinceTime=2026-01-02T03:04:05Z", 200, "out\nerr\n", `{"sinceTime":"2026-01-02T03:04:05Z","stream":"All"}`},
		{"stream=Stdout", 200, "out\n", `{"stream":"Stdout"}`},
		{"stream=Stderr", 200, "err\n", `{"stream":"Stderr"}`},
		{"tailLines=-1", 422, "", ""},
		{"tailLines=x", 400, "", ""},
		{"limitBytes=0", 422, "", ""},
		{"sinceSeconds=0", 422, "", ""},
		{"sinceSeconds=5&sinceTime=2026-01-02T03:04:05Z", 422, "", ""},
		{"sinceTime=yesterday", 400, "", ""},
		{"stream=stdin", 422, "", ""},
		{"stream=Stdout&tailLines=1", 422, "", ""},
	} {
		code, body := s.ask(c, "GET", "/containerLogs/ns/pod/app?"+q.query, nil)
		if code != q.code || code == 200 && body != q.body {
			t.Errorf("%s: got %d %q, want %d %q", q.query, code, body, q.code, q.body)
		}
		asked := strings.Join(s.agent.wasAsked(), " ")
		if want := "logs ns/pod/app " + q.asked; q.asked != "" && asked != want || q.asked == "" && asked != "" {
			t.Errorf("%s: got a question to the agent about %q, want %q", q.query, asked, want)
		}
	}
}

// TestLogErrors checks that an error is a status before the first byte, without a line feed, and a line after it.
func TestLogErrors(t *testing.T) {
	s, c := rooted(t, nil)
	for _, e := range []struct {
		err  error
		code int
	}{{errors.New("waiting to start"), 400}, {server.NotFound("no pod"), 404}} {
		s.agent.err = e.err
		if code, body := s.ask(c, "GET", "/containerLogs/ns/pod/app", nil); code != e.code || body != e.err.Error() {
			t.Errorf("got %d %q, want %d %q", code, body, e.code, e.err.Error())
		}
	}
	s.agent.logs = func(_ context.Context, stdout, _ io.Writer) error {
		_, _ = io.WriteString(stdout, "line\n")
		return errors.New("disk on fire")
	}
	if code, body := s.ask(c, "GET", "/containerLogs/ns/pod/app", nil); code != 200 || body != "line\ndisk on fire\n" {
		t.Errorf("got %d %q, want 200 and the error at the end of the log", code, body)
	}
}

// TestRetryAfter checks that a client learns when it may try again.
func TestRetryAfter(t *testing.T) {
	s, c := rooted(t, nil)
	s.agent.err = &server.Error{Code: http.StatusTooManyRequests, RetryAfter: time.Minute}
	resp, err := c.Get("https://" + s.addr.String() + "/exec/ns/pod/app?output=1")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Retry-After"); resp.StatusCode != http.StatusTooManyRequests || got != "60" {
		t.Errorf("got %s and Retry-After %q, want 429 and 60", resp.Status, got)
	}
}

// TestLogIsPlainText checks that a browser does not take a log for HTML, whatever the container has written.
func TestLogIsPlainText(t *testing.T) {
	s, c := rooted(t, nil)
	s.agent.logs = func(_ context.Context, stdout, _ io.Writer) error {
		_, err := io.WriteString(stdout, "<html><script>alert(1)</script>\n")
		return err
	}
	resp, err := c.Get("https://" + s.addr.String() + "/containerLogs/ns/pod/app")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for name, want := range map[string]string{
		"Content-Type":           "text/plain; charset=utf-8",
		"X-Content-Type-Options": "nosniff",
	} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestFollowedLogArrives checks that the header and each line arrive at once, and that the call ends with the client.
func TestFollowedLogArrives(t *testing.T) {
	s, c := rooted(t, nil)
	say, gone := make(chan string), make(chan struct{})
	s.agent.logs = func(ctx context.Context, stdout, _ io.Writer) error {
		defer close(gone)
		f := stdout.(interface{ Flush() error })
		_, _ = stdout.Write(nil)
		_ = f.Flush()
		for {
			select {
			case line := <-say:
				_, _ = io.WriteString(stdout, line)
				_ = f.Flush()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", "https://"+s.addr.String()+"/containerLogs/ns/pod/app?follow=1",
		nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, line := range []string{"one\n", "two\n"} {
		say <- line
		buf := make([]byte, len(line))
		if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != line {
			t.Fatalf("got %q, %v, want the line", buf, err)
		}
	}
	cancel()
	<-gone
}

// TestPods checks that the answer is a PodList.
func TestPods(t *testing.T) {
	s, c := rooted(t, nil)
	for _, names := range [][]string{nil, {"a"}, {"a", "b"}} {
		s.agent.pods = nil
		for _, n := range names {
			s.agent.pods = append(s.agent.pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: n}})
		}
		_, body := s.ask(c, "GET", "/pods", nil)
		var list corev1.PodList
		if err := json.Unmarshal([]byte(body), &list); err != nil || list.Kind != "PodList" || list.APIVersion != "v1" ||
			len(list.Items) != len(names) {
			t.Errorf("got %s, %v, want a PodList with each pod", body, err)
		}
	}
}

// TestAllocatedPods checks the pods of /allocatedPods: without status, and one by name.
func TestAllocatedPods(t *testing.T) {
	s, c := rooted(t, nil)
	for _, name := range []string{"a", "b"} {
		s.agent.pods = append(s.agent.pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		})
	}
	for _, path := range []string{"/allocatedPods", "/allocatedPods/"} {
		_, body := s.ask(c, "GET", path, nil)
		var list corev1.PodList
		if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Items) != 2 ||
			list.Items[0].Status.Phase != "" {
			t.Errorf("%s: got %s, want two pods without status", path, body)
		}
	}
	for path, want := range map[string]int{
		"/allocatedPods/ns/b":       200,
		"/allocatedPods/ns/b/uid-b": 200,
		"/allocatedPods/ns/b/uid-a": 404,
		"/allocatedPods/other/b":    404,
		"/allocatedPods/ns":         404,
	} {
		code, body := s.ask(c, "GET", path, nil)
		if code != want {
			t.Errorf("%s: got %d %q, want %d", path, code, body, want)
		}
		var pod corev1.Pod
		err := json.Unmarshal([]byte(body), &pod)
		if code == 200 && (err != nil || pod.Kind != "Pod" || pod.Name != "b") {
			t.Errorf("%s: got %s, want the pod b", path, body)
		}
	}
	if s.agent.pods[0].Status.Phase != corev1.PodRunning {
		t.Error("the pods of the agent: got them changed, want them as they were")
	}
}

// TestRunAndCheckpoint checks the meaning of paths and queries.
func TestRunAndCheckpoint(t *testing.T) {
	s, c := rooted(t, nil)
	if code, body := s.ask(c, "POST", "/run/ns/pod/app?cmd=ls%20-l", nil); code != 200 || body != "ran" {
		t.Errorf("got %d %q, want 200 \"ran\"", code, body)
	}
	if code, body := s.ask(c, "POST", "/checkpoint/ns/pod/app?timeout=7", nil); code != 200 ||
		strings.TrimSpace(body) != `{"items":["/checkpoints/x.tar"]}` {
		t.Errorf("got %d %q, want 200", code, body)
	}
	if code, _ := s.ask(c, "POST", "/checkpoint/ns/pod/app?timeout=soon", nil); code != 404 {
		t.Error(code)
	}
	if got := strings.Join(s.agent.wasAsked(), ", "); got != `run ns/pod/app ["ls" "-l"], checkpoint ns/pod/app 7s` {
		t.Error(got)
	}
}

// TestReadOnlyPort checks that it serves pods and the mounts for it, and nothing else.
func TestReadOnlyPort(t *testing.T) {
	addr := freeAddr(t)
	newStand(t, func(c *server.Config) { c.ReadOnly = addr })
	waitFor(t, addr)
	for path, want := range map[string]int{
		"/pods":                     200,
		"/pods/":                    200,
		"/metrics":                  200,
		"/metrics/cadvisor":         404,
		"/stats/summary":            404,
		"/exec/ns/pod/app":          404,
		"/checkpoint/ns/pod/app":    404,
		"/containerLogs/ns/pod/app": 404,
		"/configz":                  404,
		"/":                         404,
	} {
		for _, method := range []string{"GET", "POST"} {
			req, _ := http.NewRequest(method, "http://"+addr.String()+path, nil)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if method == "POST" {
				want = 404
			}
			if resp.StatusCode != want {
				t.Errorf("%s %s: got %s, want %d", method, path, resp.Status, want)
			}
		}
	}
}

// waitFor waits until the port is open.
func waitFor(t *testing.T, addr netip.AddrPort) {
	t.Helper()
	for t.Context().Err() == nil {
		if c, err := net.Dial("tcp", addr.String()); err == nil {
			c.Close()
			return
		}
	}
}

// TestPortsOpenAgain checks that ports that have failed are opened again.
func TestPortsOpenAgain(t *testing.T) {
	readOnly := freeAddr(t)
	s, c := rooted(t, func(c *server.Config) { c.ReadOnly = readOnly })
	waitFor(t, readOnly)
	for range 2 {
		faulttest.BreakListener(t, s.addr.String())
		waitFor(t, s.addr)
		if code, body := s.ask(c, "GET", "/healthz", nil); code != 200 {
			t.Errorf("the port of the kubelet API: got code %d and %q, want 200", code, body)
		}
		faulttest.BreakListener(t, readOnly.String())
		waitFor(t, readOnly)
		resp, err := http.Get("http://" + readOnly.String() + "/pods")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("the read-only port: got %s, want 200", resp.Status)
		}
	}
}

// TestCurves checks that a client without an allowed key exchange cannot connect.
func TestCurves(t *testing.T) {
	s, _ := rooted(t, func(cfg *server.Config) { cfg.TLS.CurvePreferences = []tls.CurveID{tls.CurveP384} })
	for curve, want := range map[tls.CurveID]bool{tls.CurveP384: true, tls.X25519: false} {
		c, err := tls.Dial("tcp", s.addr.String(), &tls.Config{
			InsecureSkipVerify: true, // the test is about the key exchange
			CurvePreferences:   []tls.CurveID{curve},
		})
		if got := err == nil; got != want {
			t.Errorf("%v: got %v, want a connection: %v", curve, err, want)
		}
		if err == nil {
			c.Close()
		}
	}
}

// recordedRequests is a server.Metrics that remembers.
type recordedRequests struct{ served chan string }

func (m *recordedRequests) Serving(kind, method, path string) func() {
	return func() { m.served <- kind + " " + method + " " + path }
}

func (m *recordedRequests) WebSocket(kind string) { m.served <- "websocket " + kind }

// TestRequestsAreCounted checks how requests are named, also refused ones.
func TestRequestsAreCounted(t *testing.T) {
	m := &recordedRequests{make(chan string, 10)}
	s, c := rooted(t, func(cfg *server.Config) { cfg.Metrics = m })
	for path, want := range map[string]string{
		"/pods":                     "readwrite GET pods",
		"/metrics":                  "readwrite GET metrics",
		"/containerLogs/ns/pod/app": "readwrite GET containerLogs",
		"/nowhere/x":                "readwrite GET other",
	} {
		s.ask(c, "GET", path, nil)
		if got := <-m.served; got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	s.ask(s.client(nil), "GET", "/exec/ns/pod/app", nil)
	if got := <-m.served; got != "readwrite GET exec" {
		t.Errorf("without credentials: got %q, want readwrite GET exec", got)
	}
}
