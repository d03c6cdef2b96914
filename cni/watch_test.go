package cni

import (
	"context"
	"testing"

	"github.com/nodelet/nodelet/test/faulttest"
)

// TestDirsAreLookedAtAnyway checks that directories that cannot be watched are looked at now and then.
func TestDirsAreLookedAtAnyway(t *testing.T) {
	dir := t.TempDir()
	restore := faulttest.NoFiles(t)
	looks := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		watchDirs(ctx, []string{dir}, discard(), func() {
			select {
			case looks <- struct{}{}:
			case <-ctx.Done():
			}
		})
	}()
	for range 3 {
		<-looks
	}
	restore()
	<-looks // what has happened before the watch
	cancel()
	<-done
}
