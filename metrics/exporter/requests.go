package exporter

import (
	"net/http"
	"strconv"
	"time"

	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/metrics"
)

// requests counts requests to the kubelet API, under the kubelet's names. It implements server.Metrics.
type requests struct {
	total      *metrics.Vec[*metrics.Counter]
	took       *metrics.Vec[*metrics.Histogram]
	inflight   *metrics.Vec[*metrics.Gauge]
	webSockets *metrics.Vec[*metrics.Counter]
}

// AddRequests adds the metrics of the kubelet API, and returns what counts its requests. Call it once.
func (e *Exporter) AddRequests() server.Metrics {
	labels := []string{"long_running", "method", "path", "server_type"}
	e.main.Gauges("kubelet_metrics_provider", "[ALPHA] Metrics provider used by kubelet to collect container stats. "+
		"Values can be 'cadvisor' and 'cri'", "provider").With("cadvisor").Set(1)
	return &requests{
		total: e.main.Counters("kubelet_http_requests_total",
			"[ALPHA] Number of the http requests received since the server started", labels...),
		took: e.main.Histograms("kubelet_http_requests_duration_seconds",
			"[ALPHA] Duration in seconds to serve http requests", metrics.DefaultBuckets, labels...),
		inflight: e.main.Gauges("kubelet_http_inflight_requests", "[ALPHA] Number of the inflight http requests", labels...),
		webSockets: e.main.Counters("kubelet_websocket_streaming_requests_total",
			"[ALPHA] Total number of WebSocket streaming requests (exec/attach/portforward) received by the kubelet.",
			"subresource"),
	}
}

// longRunning are the paths whose requests last as long as the client wants.
var longRunning = map[string]bool{"exec": true, "attach": true, "portforward": true, "debug": true}

// methods are the methods that have a label of their own. Like in the kubelet, PATCH is not one of them.
var methods = map[string]bool{
	http.MethodGet: true, http.MethodHead: true, http.MethodPost: true, http.MethodPut: true,
	http.MethodDelete: true, http.MethodConnect: true, http.MethodOptions: true, http.MethodTrace: true,
}

// Serving implements server.Metrics.
func (r *requests) Serving(kind, method, path string) (served func()) {
	if !methods[method] {
		method = "other"
	}
	labels := []string{strconv.FormatBool(longRunning[path]), method, path, kind}
	r.total.With(labels...).Inc()
	inflight := r.inflight.With(labels...)
	inflight.Add(1)
	began := time.Now()
	return func() {
		inflight.Add(-1)
		r.took.With(labels...).Took(time.Since(began))
	}
}

// WebSocket implements server.Metrics.
func (r *requests) WebSocket(kind string) { r.webSockets.With(kind).Inc() }
