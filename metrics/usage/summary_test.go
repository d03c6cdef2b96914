package usage

import (
	"encoding/json"
	"net/http/httptest"
	"testing"

	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// summary returns the answer to a request for /stats/summary.
func (w *world) summary(query string) (s api.Summary) {
	w.t.Helper()
	recorder := httptest.NewRecorder()
	w.SummaryHandler().ServeHTTP(recorder, httptest.NewRequest("GET", "/stats/summary"+query, nil))
	if err := json.Unmarshal(recorder.Body.Bytes(), &s); err != nil {
		w.t.Fatal(err)
	}
	if len(s.Pods) != 1 || len(s.Pods[0].Containers) != 1 || len(s.Node.SystemContainers) == 0 {
		w.t.Fatalf("got %s, want one pod with one container, and containers of the system", recorder.Body)
	}
	return s
}

// TestProcessesOfPod checks that a pod has the processes of its containers, without that of the sandbox.
func TestProcessesOfPod(t *testing.T) {
	s := newWorld(t, true).summary("")
	if p := s.Pods[0].ProcessStats; p == nil || *p.ProcessCount != 2 {
		t.Errorf("got %+v, want the 2 processes of the container", p)
	}
}

// TestPressure checks that a summary has the pressure on CPU and memory, also one of these alone. That has none on
// I/O. On cgroup v1, which does not count pressure, it is 0.
func TestPressure(t *testing.T) {
	bothVersions(t, func(t *testing.T, w *world, v2 bool) {
		for query, hasIO := range map[string]bool{"": true, "?only_cpu_and_memory=true": false} {
			s := w.summary(query)
			all := map[string]api.ContainerStats{
				"node":      {CPU: s.Node.CPU, Memory: s.Node.Memory, IO: s.Node.IO},
				"system":    s.Node.SystemContainers[0],
				"pod":       {CPU: s.Pods[0].CPU, Memory: s.Pods[0].Memory, IO: s.Pods[0].IO},
				"container": s.Pods[0].Containers[0],
			}
			for name, one := range all {
				if one.CPU.PSI == nil || one.Memory.PSI == nil {
					t.Errorf("%q, %s: got no pressure, want it", query, name)
				} else if v2 && (one.CPU.PSI.Some.Avg10 != 2 || one.Memory.PSI.Full.Total == 0) {
					t.Errorf("%q, %s: got the pressure %+v on CPU, %+v on memory", query, name, one.CPU.PSI, one.Memory.PSI)
				}
				if hasIO != (one.IO != nil) {
					t.Errorf("%q, %s: got I/O: %+v, want any: %v", query, name, one.IO, hasIO)
				}
			}
		}
	})
}
