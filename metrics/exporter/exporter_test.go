package exporter

import (
	"context"
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podstate"
)

// snapshot are pods that do not change.
type snapshot []*agent.PodFacts

func (c snapshot) Snapshot(context.Context) ([]*agent.PodFacts, error) { return c, nil }

// noCertificate is a certificate that the node does not have yet.
type noCertificate struct{}

func (noCertificate) Expires() time.Time { return time.Time{} }
func (noCertificate) Failures() uint64   { return 3 }

func get(t *testing.T, e *Exporter, path string) string {
	t.Helper()
	for _, m := range e.Mounts() {
		if m.Path == path {
			w := httptest.NewRecorder()
			m.Handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			return w.Body.String()
		}
	}
	t.Fatalf("%s is not served", path)
	return ""
}

// TestMetrics checks that the endpoints expose what was added, under the kubelet's names, and need the kubelet's
// permissions.
func TestMetrics(t *testing.T) {
	e := New("node-1")
	static := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{"kubernetes.io/config.source": "file"},
	}}
	containers := map[podstate.ContainerState]int{podstate.ContainerRunning: 2}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}}}
	running := &corev1.PodStatus{Phase: corev1.PodRunning}
	e.AddPods(snapshot{
		{Pod: static, Status: running, Sandbox: true, Containers: containers},
		{Pod: pod, Status: running, Mounted: map[string]string{"data": "/data"}},
		{Pod: pod, Status: &corev1.PodStatus{Phase: corev1.PodFailed}, Stop: &podstate.Stop{Cause: podstate.StopOrphaned}},
	}, 2)
	e.AddClientCertificate(noCertificate{})
	e.AddClaims(func() (int, map[string]int) { return 2, map[string]int{"gpu.example.com": 1} })
	asked := e.AddPodResources()
	asked.Asked("v1", "List", nil)
	asked.Asked("v1", "Get", errors.New("not found"))
	asked.Asked("v1alpha1", "List", nil)
	e.AgentMetrics().Rejected("OutOfcpu")
	text := get(t, e, "/metrics")
	for _, want := range []string{
		`kubelet_active_pods{static=""} 1`,
		`kubelet_active_pods{static="true"} 1`,
		`kubelet_desired_pods{static=""} 1`,
		`kubelet_running_pods 1`,
		`kubelet_working_pods{config="desired",lifecycle="sync",static="true"} 1`,
		`kubelet_working_pods{config="desired",lifecycle="sync",static=""} 1`,
		`kubelet_working_pods{config="orphan",lifecycle="terminated",static=""} 1`,
		`kubelet_working_pods{config="runtime_only",lifecycle="terminating",static="unknown"} 0`,
		`dra_resource_claims_in_use{driver_name="<any>"} 2`,
		`dra_resource_claims_in_use{driver_name="gpu.example.com"} 1`,
		`kubelet_pod_resources_endpoint_requests_total{server_api_version="v1"} 2`,
		`kubelet_pod_resources_endpoint_requests_total{server_api_version="v1alpha1"} 1`,
		`kubelet_pod_resources_endpoint_requests_get{server_api_version="v1"} 1`,
		`kubelet_pod_resources_endpoint_errors_get{server_api_version="v1"} 1`,
		`kubelet_running_containers{container_state="running"} 2`,
		`kubelet_cgroup_version 2`,
		`volume_manager_total_volumes{plugin_name="kubernetes.io/empty-dir",state="actual_state_of_world"} 1`,
		`kubelet_certificate_manager_client_ttl_seconds +Inf`,
		`kubelet_certificate_manager_client_expiration_renew_errors 3`,
		`kubelet_admission_rejections_total{reason="OutOfcpu"} 1`,
		`kubelet_node_config_error 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("/metrics lacks %q", want)
		}
	}
	for _, m := range e.Mounts() {
		if !m.ReadOnly || !slices.Equal(m.Access, []string{"metrics"}) {
			t.Errorf("%s: got access %v, want metrics, read only", m.Path, m.Access)
		}
	}
}
