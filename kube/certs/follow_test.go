package certs

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodelet/nodelet/test/faulttest"
	"github.com/nodelet/nodelet/test/waittest"
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

// TestFollowThroughLink checks that a file is read again when it is a link, and the file behind it is replaced in
// another directory, which is not watched.
func TestFollowThroughLink(t *testing.T) {
	target, link := filepath.Join(t.TempDir(), "new.pem"), filepath.Join(t.TempDir(), "kubelet.crt")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(target+"~", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(target+"~", target); err != nil {
			t.Fatal(err)
		}
	}
	write("1")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	var seen atomic.Value
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- watchFiles(ctx, []string{link}, 10*time.Millisecond, func() {
			text, _ := os.ReadFile(link)
			seen.Store(string(text))
		})
	}()
	for _, text := range []string{"1", "2", "3"} {
		write(text)
		waittest.Until(t, "content "+text, func() bool { return seen.Load() == text })
	}
	cancel()
	<-done
}

// TestFollowInBusyDirectory checks that a file is read also if something else in its directory changes all the time.
func TestFollowInBusyDirectory(t *testing.T) {
	ctx, cancel := context.WithCancel(waittest.Context(t))
	dir, done := t.TempDir(), make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = os.WriteFile(filepath.Join(dir, "log"), []byte("x"), 0o600)
		}
	}()
	reads := 0
	_ = watchFiles(ctx, []string{filepath.Join(dir, "kubelet.crt")}, 10*time.Millisecond, func() {
		if reads++; reads == 3 {
			cancel()
		}
	})
	if reads < 3 {
		t.Errorf("got %d reads, want three", reads)
	}
	cancel()
	<-done
}
