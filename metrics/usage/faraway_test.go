package usage

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/ownmounts"
)

// TestMeasurementKeepsNothingMounted checks that a volume can be unmounted while its file system does not say how large
// it is.
func TestMeasurementKeepsNothingMounted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	var f faraway
	dir := t.TempDir()
	daemon := ownmounts.FUSE(t, dir)
	measured := f.start([]Volume{{Path: dir}}, time.Now())
	daemon.Asked()
	if err := unix.Unmount(dir, 0); err != nil {
		t.Errorf("unmount while the daemon is asked: %v", err)
	}
	daemon.End()
	<-measured[0]
}
