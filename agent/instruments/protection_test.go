package instruments

import (
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/metrics/exporter"
)

// TestProtection checks the memory that is protected for the pods of each class.
func TestProtection(t *testing.T) {
	pod := func(memory string, guaranteed bool) *corev1.Pod {
		requests := corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse(memory)}
		r := corev1.ResourceRequirements{Requests: requests}
		if guaranteed {
			r.Limits = requests
		}
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Resources: r}}}}
	}
	running := corev1.PodStatus{Phase: corev1.PodRunning}
	pods := snapshot{
		{Pod: pod("4Ki", true), Status: running},
		{Pod: pod("1Ki", false), Status: running},
		{Pod: pod("2Ki", false), Status: running},
		{Pod: pod("64Ki", false), Status: running, Rejected: true},
		{Pod: pod("64Ki", true), Status: corev1.PodStatus{Phase: corev1.PodSucceeded}},
	}
	for protected, want := range map[bool][2]string{true: {"4096", "3072"}, false: {"0", "0"}} {
		e := exporter.New("node-1")
		AddProtection(e, pods, protected)
		w := httptest.NewRecorder()
		for _, m := range e.Mounts() {
			if m.Path == "/metrics" {
				m.Handler.ServeHTTP(w, httptest.NewRequest("GET", m.Path, nil))
			}
		}
		for i, name := range []string{"min", "low"} {
			line := "kubelet_memory_qos_node_memory_" + name + "_bytes " + want[i] + "\n"
			if !strings.Contains(w.Body.String(), line) {
				t.Errorf("protected %t: got no line %q in /metrics, want it", protected, line)
			}
		}
	}
}
