package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/test/pipe"
)

// TestLongLog checks that a log that is being read is not cut off, however long it takes. Nothing flushes it before its
// end.
func TestLongLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := strings.Repeat("x", 8<<10) + "\n" // more than the server buffers
		const lines = 30
		agent := &fakeAgent{logs: func(_ context.Context, stdout, _ io.Writer) error {
			for range lines {
				time.Sleep(time.Minute)
				if _, err := io.WriteString(stdout, line); err != nil {
					return err
				}
			}
			return nil
		}}
		s, err := server.New(server.Config{Anonymous: true, AlwaysAllow: true, Log: slog.New(slog.DiscardHandler),
			Agent: agent, Debug: true, Metrics: noMetrics{}, Streams: server.Streams{Idle: 5 * time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := ask(t, s, "/containerLogs/ns/pod/app")
		if want := lines * len(line); err != nil || len(got) < want {
			t.Errorf("got %d bytes, %v, want at least %d", len(got), err, want)
		}
	})
}

// ask returns the answer of a server to a client that reads all of it.
func ask(t *testing.T, s *server.Server, path string) (string, error) {
	t.Helper()
	l := pipe.Listen()
	srv := &http.Server{Handler: s.Handler()}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	client, err := l.Dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	go func() { _, _ = io.WriteString(client, "GET "+path+" HTTP/1.0\r\n\r\n") }()
	text, err := io.ReadAll(client)
	return string(text), err
}

// TestLongAnswer checks that a caller with a permission gets an answer that takes long, such as a large log file or a
// checkpoint.
func TestLongAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const parts = 30
		slow := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range parts {
				time.Sleep(time.Minute)
				_, err := fmt.Fprintln(w, "part")
				if errors.Join(err, http.NewResponseController(w).Flush()) != nil {
					return
				}
			}
		})
		s, err := server.New(server.Config{Anonymous: true, AlwaysAllow: true, Log: slog.New(slog.DiscardHandler),
			Metrics: noMetrics{}, Mounts: []server.Mount{{Path: "/slow", Handler: slow}}})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		text, err := ask(t, s, "/slow")
		if got, want := len(text), parts*len("part\n"); err != nil || got < want {
			t.Errorf("after %v: got %d bytes, %v, want at least %d", time.Since(began), got, err, want)
		}
	})
}
