package exporter

import "github.com/nodelet/nodelet/metrics"

// AddPodResources adds the metrics of the pod resources API, and returns what counts one call of an API version, such
// as v1. Call it once.
func (e *Exporter) AddPodResources() func(version, call string, err error) {
	const name, version = "kubelet_pod_resources_endpoint_", "server_api_version"
	total := e.main.Counters(name+"requests_total",
		"[ALPHA] Cumulative number of requests to the PodResource endpoint. Broken down by server api version.", version)
	requests, failed := map[string]*metrics.Vec[*metrics.Counter]{}, map[string]*metrics.Vec[*metrics.Counter]{}
	for call, suffix := range map[string]string{
		"List": "list", "Get": "get", "GetAllocatableResources": "get_allocatable",
	} {
		requests[call] = e.main.Counters(name+"requests_"+suffix,
			"[ALPHA] Number of requests to the PodResource "+call+" endpoint. Broken down by server api version.", version)
		failed[call] = e.main.Counters(name+"errors_"+suffix, "[ALPHA] Number of requests to the PodResource "+call+
			" endpoint which returned error. Broken down by server api version.", version)
	}
	return func(version, call string, err error) {
		total.With(version).Inc()
		if requests[call] == nil {
			return // the kubelet does not count it by itself
		}
		requests[call].With(version).Inc()
		if err != nil {
			failed[call].With(version).Inc()
		}
	}
}

// AddPodsAPI adds the metrics of the local pods API (KEP-4188), and returns what counts one call of an API version,
// such as v1alpha1, by the name of its gRPC code, such as OK. Call it once.
func (e *Exporter) AddPodsAPI() func(version, call, code string) {
	const name, by = "kubelet_pod_requests_", "Broken down by server api version and status code."
	count := func(suffix, help string) *metrics.Vec[*metrics.Counter] {
		return e.main.Counters(name+suffix, "[ALPHA] "+help+" "+by, "server_api_version", "status_code")
	}
	total := count("total", "Cumulative number of requests to the PodsAPI endpoint.")
	calls := map[string]*metrics.Vec[*metrics.Counter]{
		"ListPods":  count("list_total", "Number of requests to the PodsAPI List endpoint."),
		"GetPod":    count("get_total", "Number of requests to the PodsAPI Get endpoint."),
		"WatchPods": count("watch_total", "Number of requests to the PodsAPI Watch endpoint."),
	}
	return func(version, call, code string) {
		total.With(version, code).Inc()
		if counter := calls[call]; counter != nil {
			counter.With(version, code).Inc()
		}
	}
}
