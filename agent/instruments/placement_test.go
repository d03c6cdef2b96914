package instruments

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nodelet/nodelet/agent/placement/policy"
	"github.com/nodelet/nodelet/metrics/exporter"
)

// TestShares checks the labels with which decisions about CPUs and memory are counted.
func TestShares(t *testing.T) {
	e := exporter.New("node-1")
	p := NewPlacement(e)
	shares := func(of string) map[policy.Share]int { return map[policy.Share]int{{Resource: "cpu", Of: of}: 1} }
	for range 2 {
		p.Decided(time.Millisecond, false, policy.Count{
			Allocations:      shares("pod"),
			AllocationErrors: shares("node"),
			Assignments:      shares("pod_shared"),
		})
	}
	w := httptest.NewRecorder()
	for _, m := range e.Mounts() {
		if m.Path == "/metrics" {
			m.Handler.ServeHTTP(w, httptest.NewRequest("GET", m.Path, nil))
		}
	}
	for _, line := range []string{
		`kubelet_resource_manager_allocations_total{resource_name="cpu",source="pod"} 2`,
		`kubelet_resource_manager_allocation_errors_total{resource_name="cpu",source="node"} 2`,
		`kubelet_resource_manager_container_assignments_total{resource_name="cpu",assignment_type="pod_shared"} 2`,
	} {
		if !strings.Contains(w.Body.String(), line+"\n") {
			t.Errorf("got no line %q in /metrics, want it", line)
		}
	}
}
