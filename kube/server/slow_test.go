package server_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/test/pipe"
)

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
			Mounts: []server.Mount{{Path: "/slow", Handler: slow}}})
		if err != nil {
			t.Fatal(err)
		}
		l := pipe.Listen()
		srv := &http.Server{Handler: s.Handler()}
		go func() { _ = srv.Serve(l) }()
		defer srv.Close()
		client, err := l.Dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		go func() { _, _ = io.WriteString(client, "GET /slow HTTP/1.0\r\n\r\n") }()
		began := time.Now()
		text, err := io.ReadAll(client)
		if got, want := len(text), parts*len("part\n"); err != nil || got < want {
			t.Errorf("after %v: got %d bytes, %v, want at least %d", time.Since(began), got, err, want)
		}
	})
}
