package testbed

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestVolumesAreLeftovers lists what CSI volumes leave below the agent's root directory, also if it is empty.
func TestVolumesAreLeftovers(t *testing.T) {
	n := &Node{tb: &Testbed{}, RootDir: t.TempDir(), PodLogsDir: t.TempDir()}
	csi, hash := "plugins/kubernetes.io/csi/", strings.Repeat("0f", 32)
	for _, dir := range []string{
		"nodelet/csi/record", csi + "driver.example/" + hash + "/globalmount", csi + "volumeDevices/publish/claim",
		csi + "volumeDevices/staging", csi + "empty.example", "plugins/driver.example",
	} {
		if err := os.MkdirAll(filepath.Join(n.RootDir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	got, err := n.fileLeftovers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"record of a volume " + filepath.Join(n.RootDir, "nodelet/csi/record"),
		"volume " + filepath.Join(n.RootDir, csi, "driver.example", hash),
		"device " + filepath.Join(n.RootDir, csi, "volumeDevices/publish/claim"),
	}
	if !slices.Equal(got, want) {
		t.Errorf("leftovers: got %q, want %q", got, want)
	}
}
