package plugins

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodelet/nodelet/host/inotify"
)

// exhausted is a watcher for which the kernel has no watch left.
type exhausted struct{ adds chan struct{} }

func (e exhausted) Add(string) error {
	e.adds <- struct{}{}
	return errors.New("no space left on device")
}

func (exhausted) Changes() <-chan inotify.Change { return nil }

// TestNoWatchLeft checks that directories that cannot be watched are looked at again and again.
func TestNoWatchLeft(t *testing.T) {
	t.Parallel()
	root, err := os.MkdirTemp("", "plugins") // short: a socket's path has at most 107 characters
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	r := New(Config{Root: root, Log: slog.New(slog.DiscardHandler), PollInterval: time.Millisecond})
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w, ended := exhausted{make(chan struct{})}, make(chan struct{})
	known := map[string]*plugin{}
	go func() {
		defer close(ended)
		r.followWith(ctx, known, w)
	}()
	for range 2 { // of the root directory and the one below
		<-w.adds
	}
	socket, err := net.Listen("unix", filepath.Join(r.dir, "late.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for range 3 { // the look after them has ended with the third
		<-w.adds
	}
	cancel()
	for {
		select {
		case <-w.adds:
			continue
		case <-ended:
		}
		break
	}
	p := known[filepath.Join(r.dir, "late.sock")]
	if p == nil {
		t.Fatalf("got plugins %v, want the one that came while nothing could be watched", known)
	}
	p.end()
}
