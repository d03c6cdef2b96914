package csi_test

import (
	"context"
	"testing"

	"github.com/nodelet/nodelet/test/pagecache"
)

// TestIntentIsOnDisk checks that in each call whose effect a driver may keep beyond a reboot, the record says so on the
// disk. It cannot see whether the name of the record's file is on the disk.
func TestIntentIsOnDisk(t *testing.T) {
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		t.Run(method, func(t *testing.T) {
			pagecache.Need(t)
			w := newWorld(t, nil)
			v := w.volume("a")
			w.fail(method, "hang", 0)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = w.csi.Publish(ctx, "pod-1", v)
			}()
			w.Until("the call is under way", func() bool { return w.calls(method) > 0 })
			for _, path := range w.journals() {
				if n := pagecache.Unwritten(t, path); n != 0 {
					t.Errorf("got %d pages of the record that are in memory alone, want none:\n%s", n, read(t, path))
				}
			}
			if n := len(w.journals()); n != 1 {
				t.Errorf("got %d records, want one", n)
			}
			cancel()
			<-ended
			w.heal(method)
		})
	}
}
