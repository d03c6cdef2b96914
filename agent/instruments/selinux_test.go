package instruments

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/metrics/exporter"
	"github.com/nodelet/nodelet/volumes"
)

// TestSELinux checks in which metric a volume with an SELinux label counts.
func TestSELinux(t *testing.T) {
	t.Parallel()
	e := exporter.New("node-1")
	m := New(e)
	m.SELinux(volumes.SELinuxAdmitted, "d", "RWX", false)
	m.SELinux(volumes.SELinuxConflict, "d", "RWO", false)
	m.SELinux(volumes.SELinuxConflict, "d", "RWOP", true)
	m.SELinux(volumes.SELinuxMixed, "d", "ROX", false)
	m.SELinux(volumes.SELinuxUnknown, "d", "RWOP", true)
	w := httptest.NewRecorder()
	for _, mount := range e.Mounts() {
		if mount.Path == "/metrics" {
			mount.Handler.ServeHTTP(w, httptest.NewRequest("GET", mount.Path, nil))
		}
	}
	for _, want := range []string{
		`volumes_admitted_total{volume_plugin="kubernetes.io/csi/d",access_mode="RWX"} 1`,
		`volume_context_mismatch_warnings_total{volume_plugin="kubernetes.io/csi/d",access_mode="RWO"} 1`,
		`volume_context_mismatch_errors_total{volume_plugin="kubernetes.io/csi/d",access_mode="RWOP"} 1`,
		`pod_context_mismatch_warnings_total{access_mode="ROX"} 1`,
		`container_errors_total{access_mode="RWOP"} 1`,
	} {
		if want = "\nvolume_manager_selinux_" + want + "\n"; !strings.Contains(w.Body.String(), want) {
			t.Errorf("got no line %q in /metrics, want it", want)
		}
	}
}
