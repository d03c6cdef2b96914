package certs

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodelet/nodelet/test/faulttest"
)

// TestFollowWithoutInotify checks that changes are noticed while files cannot be watched, and afterwards.
func TestFollowWithoutInotify(t *testing.T) {
	file := filepath.Join(t.TempDir(), "client.pem")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1")
	last := digest([]string{file})
	write("2")
	restore := faulttest.NoFiles(t)
	changed := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		follow(ctx, []string{file}, last, slog.New(slog.DiscardHandler), func() { changed <- struct{}{} })
	}()
	<-changed // to empty, since the file cannot be read either
	restore()
	<-changed
	write("3")
	<-changed
	cancel()
	<-done
}
