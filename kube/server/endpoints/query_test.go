package endpoints

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nodelet/nodelet/cri/logs"
)

// fakeJournal puts a journalctl into PATH that knows kubelet.service and prints its arguments.
func fakeJournal(t *testing.T) {
	t.Helper()
	fakeJournalctl(t, "if [ \"$1\" = --field=_SYSTEMD_UNIT ]; then echo kubelet.service; exit; fi\n"+
		"for a; do echo \"[$a]\"; done")
}

// fakeJournalctl puts a journalctl into PATH.
func fakeJournalctl(t *testing.T, script string) {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "journalctl"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

func TestQuery(t *testing.T) {
	fakeJournal(t)
	dir := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o600), os.Symlink(secret, filepath.Join(dir, "link")),
		os.WriteFile(filepath.Join(dir, "plain.log"), []byte("a plain line\n"), 0o600),
		os.Mkdir(filepath.Join(dir, "deep"), 0o755),
		os.WriteFile(filepath.Join(dir, "deep", "deep.log"), []byte("a deep line\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	h := queryHandler("/logs/", logs.New(dir))
	for _, c := range []struct {
		path, query string
		code        int
		says        string
	}{
		{"/logs/", "", 200, "plain.log"},
		{"/logs/plain.log", "", 200, "a plain line"},
		{"/logs/", "query=kubelet", 200, "[--utc]\n[--no-pager]\n[--output=short-precise]\n[--unit=kubelet]\n"},
		{"/logs/", "query=kubelet.service&tailLines=5&boot=-1&pattern=a%2Bb", 200,
			"[--lines=5]\n[--boot=-1]\n[--grep=a+b]\n[--unit=kubelet.service]\n"},
		{"/logs/", "query=kubelet&sinceTime=2026-01-02T03:04:05%2B01:00", 200, "[--since=2026-01-02 02:04:05 UTC]"},
		{"/logs/", "query=plain", 200, "a plain line"},
		{"/logs/", "query=deep", 200, "a deep line"},
		{"/logs/", "query=/plain.log", 200, "a plain line"},
		{"/logs/", "query=deep%5Cdeep.log", 200, "a deep line"},
		{"/logs/", "query=kubelet&query=plain", 200, "a plain line"},
		{"/logs/", "query=nothing", 200, "log not found for nothing"},
		{"/logs/", "query=link", 200, "error getting log for link"},
		{"/logs/", "query=plain&tailLines=5", 200, "ask again without options"},
		{"/logs/", "query=/link", 404, "cannot be read"},
		{"/logs/", "query=/../../etc/passwd", 404, "cannot be read"},
		{"/logs/plain.log", "query=kubelet", 406, "path not allowed"},
		{"/logs/", "query=%20", 400, "query: must not be empty"},
		{"/logs/", "tailLines=5", 400, "query: must not be empty"},
		{"/logs/", "query=-f", 400, "query:"},
		{"/logs/", "query=a%20--file=x", 400, "query:"},
		{"/logs/", "query=a&query=b&query=c&query=d&query=e", 400, "at most 4"},
		{"/logs/", "query=/a&query=b", 400, "only query"},
		{"/logs/", "query=/a&boot=0", 400, "without options"},
		{"/logs/", "query=a&boot=1", 400, "boot:"},
		{"/logs/", "query=a&tailLines=100001", 400, "tailLines:"},
		{"/logs/", "query=a&sinceTime=yesterday", 400, "sinceTime:"},
		{"/logs/", "query=a&sinceTime=2026-01-02T03:04:05Z&untilTime=2026-01-01T03:04:05Z", 400, "untilTime:"},
		{"/logs/", "query=a&pattern=(", 400, "pattern:"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.URL.Path, r.URL.RawQuery = c.path, c.query
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Body.String(); w.Code != c.code || !strings.Contains(got, c.says) || got == "secret" {
			t.Errorf("%s?%s: got %d %q, want %d %q", c.path, c.query, w.Code, got, c.code, c.says)
		}
	}
}

// TestQueriesAreBounded checks that few queries run at a time, whichever path they are for.
func TestQueriesAreBounded(t *testing.T) {
	seen := filepath.Join(t.TempDir(), "seen")
	fakeJournalctl(t, "echo + >> "+seen+"; sleep 0.2; echo - >> "+seen)
	handlers := map[string]http.Handler{}
	for _, m := range Mounts(Config{SystemLogs: true, SystemLogQuery: true, Logs: logs.New(t.TempDir())}, nil) {
		handlers[m.Path] = m.Handler
	}
	var all sync.WaitGroup
	for range maxQueries {
		for _, path := range []string{"/logs", "/logs/"} {
			r := httptest.NewRequestWithContext(t.Context(), "GET", path+"?query=kubelet", nil)
			all.Go(func() { handlers[path].ServeHTTP(httptest.NewRecorder(), r) })
		}
	}
	all.Wait()
	text, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	now := 0
	for line := range strings.Lines(string(text)) {
		if line == "+\n" {
			now++
		} else {
			now--
		}
		if now > maxQueries {
			t.Fatalf("got the starts and ends %q, want at most %d at a time", text, maxQueries)
		}
	}
}

// TestQueryWaitsForItsTurn checks the answer to a query that others keep from running.
func TestQueryWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := httptest.NewRecorder()
		(&query{}).serve(w, httptest.NewRequestWithContext(t.Context(), "GET", "/logs/", nil), nil, make(chan struct{}))
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "5" {
			t.Errorf("got status %d, Retry-After %q, want 429, 5", w.Code, w.Header().Get("Retry-After"))
		}
	})
}

// FuzzQuery checks that journalctl gets no option that the query invents.
func FuzzQuery(f *testing.F) {
	f.Add("query=kubelet&boot=-1&tailLines=3&pattern=x&sinceTime=2026-01-02T03:04:05Z")
	f.Add("query=/a/../b&query=--file")
	f.Fuzz(func(t *testing.T, raw string) {
		v, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		q, err := parseQuery(v)
		if err != nil || q == nil {
			return
		}
		for _, name := range q.services {
			if strings.HasPrefix(name, "-") || strings.ContainsAny(name, " \n\x00/\\") {
				t.Errorf("service: got %q, want a plain name", name)
			}
		}
		for _, o := range q.filters {
			if !strings.HasPrefix(o, "--") || !strings.Contains(o, "=") {
				t.Errorf("option: got %q, want one of the form --name=value", o)
			}
		}
		if q.file == "" && len(q.services) == 0 {
			t.Error("got a query for nothing, want a file or services")
		}
	})
}
