package exporter

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/probes"
	"github.com/nodelet/nodelet/test/exposition"
)

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
			exposition.Parse(t, w.Body.String())
			return w.Body.String()
		}
	}
	t.Fatalf("got no handler of %s, want one", path)
	return ""
}

// TestMetrics checks that the endpoints expose what was added, under the kubelet's names, and need the kubelet's
// permissions.
func TestMetrics(t *testing.T) {
	e := New("node-1")
	e.AddClientCertificate(noCertificate{})
	e.AddRotations()(2 * time.Hour)
	e.AddClaims(func() (int, map[string]int) { return 2, map[string]int{"gpu.example.com": 1} })
	asked := e.AddPodResources()
	asked("v1", "List", nil)
	asked("v1", "Get", errors.New("not found"))
	asked("v1alpha1", "List", nil)
	e.AddPodsAPI()("v1alpha1", "GetPod", "NotFound")
	e.AddPlugins(func() map[string][]string {
		return map[string][]string{"DevicePlugin": nil, "CSIPlugin": {"nfs.example.com", "a.example.com", "nfs.example.com"}}
	}, func() map[string]bool { return map[string]bool{"/run/nfs.sock": true, "/run/new.sock": false} })
	configured, ran := e.AddCredentialProviders()
	configured("sha256:1")
	ran("ecr", time.Second, nil)
	ran("ecr", time.Second, errors.New("no network"))
	requests := e.AddRequests()
	requests.Serving("readwrite", "TRACE", "pods")()
	requests.Serving("readwrite", "PATCH", "pods")()
	e.AddSettings([]config.Warning{{Flag: "lock-file"}, {Field: "qosReserved"}})
	text := get(t, e, "/metrics")
	for _, want := range []string{
		`dra_resource_claims_in_use{driver_name="<any>"} 2`,
		`dra_resource_claims_in_use{driver_name="gpu.example.com"} 1`,
		`kubelet_pod_resources_endpoint_requests_total{server_api_version="v1"} 2`,
		`kubelet_pod_resources_endpoint_requests_total{server_api_version="v1alpha1"} 1`,
		`kubelet_pod_resources_endpoint_requests_get{server_api_version="v1"} 1`,
		`kubelet_pod_resources_endpoint_errors_get{server_api_version="v1"} 1`,
		`kubelet_pod_requests_total{server_api_version="v1alpha1",status_code="NotFound"} 1`,
		`kubelet_pod_requests_get_total{server_api_version="v1alpha1",status_code="NotFound"} 1`,
		`nodelet_plugin_registered{type="CSIPlugin",name="a.example.com"} 1` + "\n" +
			`nodelet_plugin_registered{type="CSIPlugin",name="nfs.example.com"} 1`,
		`plugin_manager_total_plugins{socket_path="/run/nfs.sock",state="actual_state_of_world"} 1`,
		`plugin_manager_total_plugins{socket_path="/run/nfs.sock",state="desired_state_of_world"} 1`,
		`plugin_manager_total_plugins{socket_path="/run/new.sock",state="desired_state_of_world"} 1`,
		`kubelet_credential_provider_config_info{hash="sha256:1"} 1`,
		`kubelet_credential_provider_plugin_duration_count{plugin_name="ecr"} 2`,
		`kubelet_credential_provider_plugin_errors_total{plugin_name="ecr"} 1`,
		`kubelet_http_requests_total{long_running="false",method="TRACE",path="pods",server_type="readwrite"} 1`,
		`kubelet_http_requests_total{long_running="false",method="other",path="pods",server_type="readwrite"} 1`,
		`kubelet_certificate_manager_client_ttl_seconds +Inf`,
		`kubelet_certificate_manager_client_expiration_renew_errors 3`,
		`kubelet_certificate_manager_server_rotation_seconds_bucket{le="3600"} 0`,
		`kubelet_certificate_manager_server_rotation_seconds_bucket{le="14400"} 1`,
		`kubelet_certificate_manager_server_rotation_seconds_sum 7200`,
		`kubelet_node_config_error 0`,
		`nodelet_build_info{go="` + runtime.Version() + `",kubernetes="` + config.KubernetesVersion + `",version="` +
			config.Version + `"} 1`,
		`nodelet_setting_without_effect{setting="--lock-file"} 1`,
		`nodelet_setting_without_effect{setting="qosReserved"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("/metrics: got no line %q, want it", want)
		}
	}
	for _, m := range e.Mounts() {
		if !m.ReadOnly || !slices.Equal(m.Access, []string{"metrics"}) {
			t.Errorf("%s: got access %v, want metrics, read only", m.Path, m.Access)
		}
	}
}

// TestProbeResults checks that a warning counts as a success, and an attempt that says nothing about the container for
// nothing.
func TestProbeResults(t *testing.T) {
	e := New("node-1")
	for _, o := range []probes.Outcome{probes.Succeeded, probes.Warned, probes.Failed, probes.Errored} {
		e.ProbeAttempted("uid", probes.Attempt{
			Container: "app",
			Namespace: "default",
			Pod:       "web",
			Kind:      probes.Readiness,
			Outcome:   o,
			Took:      time.Second,
		})
	}
	text := get(t, e, "/metrics/probes")
	of := func(result string) string {
		return `prober_probe_total{container="app",namespace="default",pod="web",pod_uid="uid",probe_type="Readiness",` +
			`result="` + result + `"}`
	}
	took := `prober_probe_duration_seconds_count{container="app",namespace="default",pod="web",probe_type="Readiness"} 2`
	for _, want := range []string{of("successful") + " 2\n", of("failed") + " 1\n", took + "\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("got no line %q, want it", want)
		}
	}
	if n := strings.Count(text, "\nprober_probe_total{"); n != 2 {
		t.Errorf("got %d results, want 2", n)
	}
}

// TestStepsAtGracePeriod checks that quantiles of steps tell the end of a usual grace period from minutes. 30 seconds
// is the default, and containers that take no SIGTERM end a little later.
func TestStepsAtGracePeriod(t *testing.T) {
	e := New("node-1")
	stop := e.AddSteps().With("success", "StopContainer")
	stop.Took(30*time.Second + 400*time.Millisecond)
	stop.Took(60*time.Second + 400*time.Millisecond)
	text := get(t, e, "/metrics")
	for le, want := range map[string]int{"30": 0, "35": 1, "65": 2} {
		line := fmt.Sprintf(`_bucket{result="success",step="StopContainer",le="%s"} %d`, le, want)
		if !strings.Contains(text, "\nnodelet_step_duration_seconds"+line+"\n") {
			t.Errorf("/metrics: got no line %s, want it", line)
		}
	}
}

// TestHealthChecks checks /metrics/slis: the last result of each check, all results, and their reset.
func TestHealthChecks(t *testing.T) {
	e := New("node-1")
	checked := e.AddHealthChecks()
	checked("ping", true)
	checked("runtime", true)
	checked("runtime", false)
	text := get(t, e, "/metrics/slis")
	for _, want := range []string{
		`kubernetes_healthcheck{name="ping",type="healthz"} 1`,
		`kubernetes_healthcheck{name="runtime",type="healthz"} 0`,
		`kubernetes_healthchecks_total{name="runtime",status="error",type="healthz"} 1`,
		`kubernetes_healthchecks_total{name="runtime",status="success",type="healthz"} 1`,
		"process_start_time_seconds ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("got no %s in\n%s", want, text)
		}
	}
	for _, m := range e.Mounts() {
		if m.Path == "/metrics/slis" {
			m.Handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("DELETE", m.Path, nil))
		}
	}
	if text := get(t, e, "/metrics/slis"); strings.Contains(text, "ping") {
		t.Errorf("after a DELETE: got\n%s", text)
	}
}
