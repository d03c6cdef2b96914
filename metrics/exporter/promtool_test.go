package exporter

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/programs"
)

// kubeletNames are families with names of the kubelet that the rules for names do not allow.
var kubeletNames = []string{
	"kubelet_cpu_manager_exclusive_cpu_allocation_count", "kubelet_evictions", "kubelet_preemptions",
	"kubelet_pod_resources_endpoint_requests_list", "kubelet_topology_manager_admission_duration_ms",
}

// TestPromtool lets promtool check the exposition, if it is installed.
func TestPromtool(t *testing.T) {
	promtool := programs.Find(t, "promtool")
	e := New("node-1")
	e.AddHealthChecks()("ping", true)
	e.AddManagers().Decisions.Inc()
	e.AddPodResources()("v1", "List", nil)
	e.AddPodsAPI()("v1alpha1", "ListPods", "OK")
	e.AddFeatures(func(string) bool { return true })
	e.AddSteps().With("failure", "Mount").Took(1)
	e.AddRequests().Serving("readwrite", "GET", "pods")()
	e.Agent.Evictions.With("memory.available").Inc()
	e.Agent.StartedContainers.With("container").Inc()
	for _, path := range []string{"/metrics", "/metrics/slis", "/metrics/probes"} {
		check := exec.Command(promtool, "check", "metrics")
		check.Stdin = strings.NewReader(get(t, e, path))
		out, err := check.CombinedOutput()
		for line := range strings.Lines(string(out)) {
			name, _, _ := strings.Cut(line, " ")
			known := false
			for _, k := range kubeletNames {
				known = known || name == k
			}
			if !known {
				t.Errorf("%s: got %s", path, line)
			}
		}
		if err != nil && len(out) == 0 {
			t.Errorf("%s: got %v, want no error", path, err)
		}
	}
}
