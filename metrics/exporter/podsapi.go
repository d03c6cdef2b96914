package exporter

import "github.com/nodelet/nodelet/metrics"

// PodsAPI counts the calls of the local pods API (KEP-4188), under the kubelet's names.
type PodsAPI struct {
	total *metrics.Vec[*metrics.Counter]
	// calls has an instrument for each call.
	calls map[string]*metrics.Vec[*metrics.Counter]
}

// AddPodsAPI adds the metrics of the local pods API.
func (e *Exporter) AddPodsAPI() *PodsAPI {
	const name, by = "kubelet_pod_requests_", "Broken down by server api version and status code."
	count := func(suffix, help string) *metrics.Vec[*metrics.Counter] {
		return e.main.Counters(name+suffix, "[ALPHA] "+help+" "+by, "server_api_version", "status_code")
	}
	return &PodsAPI{
		total: count("total", "Cumulative number of requests to the PodsAPI endpoint."),
		calls: map[string]*metrics.Vec[*metrics.Counter]{
			"ListPods":  count("list_total", "Number of requests to the PodsAPI List endpoint."),
			"GetPod":    count("get_total", "Number of requests to the PodsAPI Get endpoint."),
			"WatchPods": count("watch_total", "Number of requests to the PodsAPI Watch endpoint."),
		},
	}
}

// Asked counts one call of an API version, such as v1alpha1, by the name of its gRPC code, such as OK.
func (p *PodsAPI) Asked(version, call, code string) {
	p.total.With(version, code).Inc()
	if counter := p.calls[call]; counter != nil {
		counter.With(version, code).Inc()
	}
}
