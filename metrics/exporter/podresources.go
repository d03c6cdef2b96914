package exporter

import "github.com/nodelet/nodelet/metrics"

// PodResources counts the calls of the pod resources API, under the kubelet's names.
type PodResources struct {
	total *metrics.Vec[*metrics.Counter]
	// requests and errors have an instrument for each call that the kubelet counts.
	requests, errors map[string]*metrics.Vec[*metrics.Counter]
}

// AddPodResources adds the metrics of the pod resources API.
func (e *Exporter) AddPodResources() *PodResources {
	const name, version = "kubelet_pod_resources_endpoint_", "server_api_version"
	p := &PodResources{
		total: e.main.Counters(name+"requests_total",
			"[ALPHA] Cumulative number of requests to the PodResource endpoint. Broken down by server api version.", version),
		requests: map[string]*metrics.Vec[*metrics.Counter]{},
		errors:   map[string]*metrics.Vec[*metrics.Counter]{},
	}
	for call, suffix := range map[string]string{
		"List": "list", "Get": "get", "GetAllocatableResources": "get_allocatable",
	} {
		p.requests[call] = e.main.Counters(name+"requests_"+suffix,
			"[ALPHA] Number of requests to the PodResource "+call+" endpoint. Broken down by server api version.", version)
		p.errors[call] = e.main.Counters(name+"errors_"+suffix, "[ALPHA] Number of requests to the PodResource "+call+
			" endpoint which returned error. Broken down by server api version.", version)
	}
	return p
}

// Asked counts one call of an API version, such as v1.
func (p *PodResources) Asked(version, call string, err error) {
	p.total.With(version).Inc()
	if counter := p.requests[call]; counter != nil {
		counter.With(version).Inc()
	}
	if counter := p.errors[call]; counter != nil && err != nil {
		counter.With(version).Inc()
	}
}
