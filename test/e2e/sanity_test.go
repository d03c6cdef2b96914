//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nodelet/nodelet/test/testbed"
)

// TestLongSanity runs the CSI project's conformance tests against the driver that the other tests use.
func TestLongSanity(t *testing.T) {
	d := startCSI(t)
	cache, err := testbed.OpenCache(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	sanity, err := cache.Program(t.Context(), "csi-test", "csi-sanity")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), sanity, "--csi.endpoint="+d.socket,
		"--csi.mountdir="+filepath.Join(dir, "target"),
		"--csi.stagingdir="+filepath.Join(dir, "staging"), "--ginkgo.no-color")
	out, err := cmd.CombinedOutput()
	t.Logf("csi-sanity: %s", out[max(0, len(out)-4000):])
	if err != nil {
		t.Error(err)
	}
}
