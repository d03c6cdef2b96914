package inotify

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodelet/nodelet/test/waittest"
)

// followThrice follows a directory until it was looked at three times.
func followThrice(t *testing.T, dir string) {
	t.Helper()
	ctx, cancel := context.WithCancel(waittest.Context(t))
	looks := 0
	err := follow(ctx, []string{dir}, 100*time.Millisecond, 10*time.Millisecond, func() {
		if looks++; looks == 3 {
			cancel()
		}
	})
	if looks < 3 {
		t.Errorf("got %d looks, %v, want three", looks, err)
	}
}

// TestNotEachChangeIsReported checks that paths are looked at now and then without a reported change: that of a file
// behind a link is not reported, nor that of a permission.
func TestNotEachChangeIsReported(t *testing.T) { followThrice(t, t.TempDir()) }

// TestChangesWithoutEnd checks that a directory that changes all the time is looked at now and then.
func TestChangesWithoutEnd(t *testing.T) {
	dir := t.TempDir()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.WriteFile(filepath.Join(dir, "log"), []byte("x"), 0o600)
			}
		}
	}()
	followThrice(t, dir)
	close(stop)
	<-done
}
