package mounts

import (
	"context"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/ownmounts"
)

// TestBroken checks that a FUSE file system counts as broken when its daemon has gone, and not while that answers
// nothing. It is asked once at a time, however often somebody wants to know.
func TestBroken(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	p, dir := &Prober{}, t.TempDir()
	for _, path := range []string{dir, dir + "/missing"} {
		if p.Broken(t.Context(), path) {
			t.Errorf("%s: got that it is broken, want that it is not", path)
		}
	}
	daemon := ownmounts.FUSE(t, dir)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		if p.Broken(ended, dir) {
			t.Error("a daemon that does not answer: got that the mount is broken, want that it is not")
		}
	}
	first := p.ask(dir)
	if again := p.ask(dir); again != first {
		t.Error("got two questions at a time, want one")
	}
	daemon.End()
	<-first.done
	if !p.Broken(t.Context(), dir) {
		t.Error("a daemon that has gone: got that the mount is not broken, want that it is")
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	if p.Broken(t.Context(), dir) || len(p.asked) > 0 {
		t.Errorf("after the unmount: got that it is broken, or %d questions, want neither", len(p.asked))
	}
}

// TestBrokenKeepsNothingMounted checks that a file system that does not answer can be unmounted meanwhile.
func TestBrokenKeepsNothingMounted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	p, dir := &Prober{}, t.TempDir()
	daemon := ownmounts.FUSE(t, dir)
	question := p.ask(dir)
	daemon.Asked()
	if err := unix.Unmount(dir, 0); err != nil {
		t.Errorf("unmount while the daemon is asked: %v", err)
	}
	daemon.End()
	<-question.done
}
