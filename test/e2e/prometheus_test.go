//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// scraper is a service account that may only read the node's metrics.
const scraper = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: scraper, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: e2e-scraper}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-scraper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: e2e-scraper}
subjects: [{kind: ServiceAccount, name: scraper, namespace: default}]
`

// scrapes maps the jobs in the selectors of kubernetes-mixin to the paths of their metrics.
var scrapes = map[string]string{
	"kubelet":  "/metrics",
	"cadvisor": "/metrics/cadvisor",
	"resource": "/metrics/resource",
	"probes":   "/metrics/probes",
	"slis":     "/metrics/slis",
}

// mixin has queries of kubernetes-mixin's dashboards, rules and alerts, with values for the variables and shorter
// ranges. Each must have a result on a node with the pods of testdata/metrics.
var mixin = []string{
	`up{job="kubelet"} == 1`, `up{job="cadvisor"} == 1`, `up{job="resource"} == 1`, `up{job="probes"} == 1`,
	`up{job="slis"} == 1`, `sum by (name) (kubernetes_healthcheck{job="slis"}) > 0`,
	`sum by (name, status) (rate(kubernetes_healthchecks_total{job="slis"}[1m]))`,
	`count(up{job="kubelet"} unless on (instance) (kubelet_node_name{job="kubelet"} != 1)) > 0`,
	`histogram_quantile(0.99, sum(rate(kubelet_pleg_relist_duration_seconds_bucket{job="kubelet"}[1m])) ` +
		`by (instance, le) * on (instance) group_left (node) kubelet_node_name{job="kubelet"})`,
	`histogram_quantile(0.99, sum(kubelet_pod_worker_duration_seconds_bucket{job="kubelet"}) by (instance, le)) * ` +
		`on (instance) group_left (node) kubelet_node_name{job="kubelet"} < 60`,
	`max(max(kubelet_running_pods{job="kubelet"}) by (instance) * on (instance) group_left (node) ` +
		`kubelet_node_name{job="kubelet"}) by (node) / 110 < 0.95`,
	`sum(rate(kubelet_runtime_operations_total{job="kubelet", operation_type="list_containers"}[1m])) by (instance)`,
	`sum(rate(rest_client_requests_total{job="kubelet"}[1m])) by (code, method, instance)`,
	`sum(kubelet_node_name{job="kubelet"})`,
	`sum(kubelet_running_pods{job="kubelet"}) > 0`,
	`sum(kubelet_running_containers{job="kubelet", container_state="running"}) > 0`,
	`sum(volume_manager_total_volumes{job="kubelet", state="actual_state_of_world"}) > 0`,
	`sum(volume_manager_total_volumes{job="kubelet", state="desired_state_of_world"}) > 0`,
	`sum(rate(kubelet_node_config_error{job="kubelet"}[1m]))`,
	`sum(rate(kubelet_runtime_operations_total{job="kubelet"}[1m])) by (operation_type, instance)`,
	`histogram_quantile(0.99, sum(rate(kubelet_runtime_operations_duration_seconds_bucket{job="kubelet"}[1m])) ` +
		`by (instance, operation_type, le))`,
	`sum(rate(kubelet_pod_start_duration_seconds_count{job="kubelet"}[1m])) by (instance)`,
	`histogram_quantile(0.99, sum(kubelet_pod_start_duration_seconds_bucket{job="kubelet"}) by (instance, le)) > 0`,
	`sum(rate(kubelet_pod_worker_duration_seconds_count{job="kubelet"}[1m])) by (operation_type, instance)`,
	`histogram_quantile(0.99, sum(kubelet_pod_worker_duration_seconds_bucket{job="kubelet"}) by (instance, le)) > 0`,
	`sum(rate(storage_operation_duration_seconds_count{job="kubelet"}[1m])) by (instance, operation_name, volume_plugin)`,
	`histogram_quantile(0.99, sum(storage_operation_duration_seconds_bucket{job="kubelet"}) ` +
		`by (instance, operation_name, volume_plugin, le)) > 0`,
	`sum(rate(kubelet_cgroup_manager_duration_seconds_count{job="kubelet"}[1m])) by (instance, operation_type)`,
	`histogram_quantile(0.99, sum(kubelet_cgroup_manager_duration_seconds_bucket{job="kubelet"}) ` +
		`by (instance, operation_type, le)) > 0`,
	`sum(rate(kubelet_pleg_relist_duration_seconds_count{job="kubelet"}[1m])) by (instance)`,
	`histogram_quantile(0.99, sum(kubelet_pleg_relist_interval_seconds_bucket{job="kubelet"}) by (instance, le)) > 0`,
	`histogram_quantile(0.99, sum(kubelet_pleg_relist_duration_seconds_bucket{job="kubelet"}) by (instance, le)) > 0`,
	`max by (instance) (kubelet_running_pods{job="kubelet"} > 1) * on (instance) group_left(node) max ` +
		`by (instance, node) (kubelet_node_name{job="kubelet"})`,
	`sum(rate(rest_client_requests_total{job="kubelet", code=~"2.."}[1m])) > 0`,
	`histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket{job="kubelet"}[1m])) ` +
		`by (instance, verb, le)) > 0`,
	`process_resident_memory_bytes{job="kubelet"} > 0`, `rate(process_cpu_seconds_total{job="kubelet"}[1m])`,
	`go_goroutines{job="kubelet"} > 0`,
	`count by (git_version) (kubernetes_build_info{job="kubelet"})`,
	`kubelet_certificate_manager_client_ttl_seconds > 0`,
	`kubelet_certificate_manager_client_expiration_renew_errors == 0`,
	`kubelet_certificate_manager_server_ttl_seconds > 0`, `kubelet_server_expiration_renew_errors == 0`,

	`sum by (namespace, pod, container) (rate(container_cpu_usage_seconds_total{job="cadvisor", image!="", ` +
		`container="busy"}[1m])) > 0`,
	`sum(container_memory_working_set_bytes{job="cadvisor", namespace="default", container!="", image!=""}) by (pod) > 0`,
	`sum(container_memory_rss{job="cadvisor", namespace="default", container!="", image!=""}) by (container) > 0`,
	`sum(container_memory_cache{job="cadvisor", namespace="default", container!="", image!=""})`,
	`sum(container_memory_swap{job="cadvisor", namespace="default", container!="", image!=""})`,
	`sum(increase(container_cpu_cfs_periods_total{job="cadvisor", namespace="default", pod="metrics-burstable", ` +
		`container="busy"}[1m])) by (container) > 0`,
	`sum(increase(container_cpu_cfs_throttled_periods_total{job="cadvisor", namespace="default", ` +
		`container!=""}[1m])) by (container, pod)`,
	`sum(rate(container_network_receive_bytes_total{job="cadvisor", namespace="default", ` +
		`pod="metrics-burstable"}[1m])) by (pod) > 0`,
	`sum(rate(container_network_transmit_bytes_total{job="cadvisor", namespace=~".+"}[1m])) by (namespace) > 0`,
	`sum(rate(container_network_receive_packets_total{job="cadvisor", namespace="default"}[1m])) by (pod) > 0`,
	`sum(rate(container_network_transmit_packets_dropped_total{job="cadvisor", namespace="default"}[1m])) by (pod)`,
	`sum(rate(container_network_receive_packets_dropped_total{job="cadvisor", namespace="default"}[1m])) by (pod)`,
	`sort_desc(avg(irate(container_network_receive_bytes_total{job="cadvisor", namespace=~".+"}[1m])) by (namespace))`,
	`topk(10, sum(rate(container_network_transmit_packets_total{job="cadvisor", namespace="default"}[1m])) by (pod)) > 0`,
	`sum(container_memory_usage_bytes{job="cadvisor", namespace="default", container!="", image!=""}) by (pod) > 0`,
	`sum(container_memory_working_set_bytes{job="cadvisor", container="busy", image!=""}) / ` +
		`sum(container_spec_memory_limit_bytes{job="cadvisor", container="busy"}) < 1`,
	`sum(rate(container_cpu_usage_seconds_total{job="cadvisor", container="busy"}[1m])) / sum(container_spec_cpu_quota` +
		`{job="cadvisor", container="busy"} / container_spec_cpu_period{job="cadvisor", container="busy"}) > 0`,
	`time() - max by (container) (container_start_time_seconds{job="cadvisor", container="web"}) > 0`,
	`sum by (pod) (container_oom_events_total{job="cadvisor", namespace="default", container!=""}) == 0`,
	`sum by (pod) (container_processes{job="cadvisor", namespace="default"}) > 0`,
	`sum(machine_cpu_cores{job="cadvisor"}) > 0`,
	`sum(machine_memory_bytes{job="cadvisor"}) > 0`, `container_cpu_usage_seconds_total{job="cadvisor", id="/"} > 0`,

	`rate(node_cpu_usage_seconds_total{job="resource"}[1m]) > 0`, `node_memory_working_set_bytes{job="resource"} > 0`,
	`rate(pod_cpu_usage_seconds_total{job="resource", pod="metrics-burstable"}[1m]) > 0`,
	`container_memory_working_set_bytes{job="resource", container="web"} > 0`,
	`sum by (result) (rate(prober_probe_total{job="probes", probe_type="Liveness", result="successful"}[1m])) > 0`,
	`histogram_quantile(0.99, sum(rate(prober_probe_duration_seconds_bucket{job="probes"}[1m])) by (le)) > 0`,
}

// dashboardQueries returns the queries of nodelet's dashboard, with values for its variables.
func dashboardQueries(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../packaging/prometheus/nodelet.dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	values := strings.NewReplacer("$job", "kubelet", "$instance", ".*", "$__rate_interval", "1m")
	var all []string
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all = append(all, values.Replace(target.Expr))
		}
	}
	return all
}

// TestLongPrometheus runs a real Prometheus that scrapes all five endpoints with the token of a service account. The
// queries of kubernetes-mixin and of nodelet's dashboard must have results.
func TestLongPrometheus(t *testing.T) {
	clean(t)
	sameAgent(t)
	program, err := cache(t).Prometheus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	applyFile(t, "metrics/pods.yaml")
	apply(t, scraper)
	waitReady(t, "metrics-burstable")
	scrape(t, "healthz") // its checks are in /metrics/slis
	dir := t.TempDir()
	token := kubectl(t, "create", "token", "scraper", "--duration=1h")
	write(t, filepath.Join(dir, "token"), token)
	config := "global: {scrape_interval: 2s}\nscrape_configs:\n"
	for job, path := range scrapes {
		config += fmt.Sprintf("- {job_name: %s, scheme: https, metrics_path: %s, tls_config: {insecure_skip_verify: true},\n"+
			"   authorization: {credentials_file: %s}, static_configs: [{targets: ['%s:10250']}]}\n", job, path,
			filepath.Join(dir, "token"), node().IP)
	}
	write(t, filepath.Join(dir, "prometheus.yml"), config)
	runOnNode(t, program, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+node().IP+":9090")

	queries := append(dashboardQueries(t), mixin...)
	began := time.Now()
	eventually(t, "all queries have results", func() (string, bool) {
		time.Sleep(time.Second) // Prometheus scrapes every two seconds
		var still []string
		for _, q := range queries {
			if n, err := query(t, q); err != nil || n == 0 {
				still = append(still, fmt.Sprint(q, " ", err))
			}
		}
		return strings.Join(still, "\n"), len(still) == 0
	})
	t.Logf("%d queries have results %s after the start of Prometheus", len(queries), time.Since(began).Round(time.Second))
	for job := range scrapes {
		if n, err := query(t, fmt.Sprintf(`scrape_samples_scraped{job=%q} > 2`, job)); err != nil || n != 1 {
			t.Errorf("series with samples of job %s: got %d, %v; want 1", job, n, err)
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// query sends a query to Prometheus and returns the number of series in the answer.
func query(t *testing.T, q string) (int, error) {
	t.Helper()
	resp, err := http.Get("http://" + node().IP + ":9090/api/v1/query?query=" + url.QueryEscape(q))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s", answer.Error)
	}
	return len(answer.Data.Result), nil
}
