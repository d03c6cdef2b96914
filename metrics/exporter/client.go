package exporter

import (
	"context"
	"net/url"
	"time"

	clientmetrics "k8s.io/client-go/tools/metrics"

	"github.com/nodelet/nodelet/metrics"
)

var (
	requestBuckets = []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	sizeBuckets    = []float64{64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216}
)

// countRequests adds the families about requests to the API server, and makes client-go count in them. client-go takes
// only the first registration of a process.
func countRequests(r *metrics.Registry) {
	const limiter = "[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host."
	took := func(name, help string) latency {
		return latency{r.Histograms(name, help, requestBuckets, "host", "verb")}
	}
	sizes := func(name, help string) size {
		return size{r.Histograms(name, help, sizeBuckets, "host", "verb")}
	}
	clientmetrics.Register(clientmetrics.RegisterOpts{
		RequestResult: result{r.Counters("rest_client_requests_total",
			"[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.", "code", "host", "method")},
		RequestRetry: result{r.Counters("rest_client_request_retries_total",
			"[ALPHA] Number of request retries, partitioned by status code, verb, and host.", "code", "host", "verb")},
		RequestLatency: took("rest_client_request_duration_seconds",
			"[ALPHA] Request latency in seconds. Broken down by verb, and host."),
		RateLimiterLatency: took("rest_client_rate_limiter_duration_seconds", limiter),
		RequestSize: sizes("rest_client_request_size_bytes",
			"[ALPHA] Request size in bytes. Broken down by verb and host."),
		ResponseSize: sizes("rest_client_response_size_bytes",
			"[ALPHA] Response size in bytes. Broken down by verb and host."),
		TransportCacheEntries: entries{r.Gauge("rest_client_transport_cache_entries",
			"[ALPHA] Number of transport entries in the internal cache.")},
	})
}

// These types count for client-go, which has an interface for each family.
type (
	latency struct {
		*metrics.Vec[*metrics.Histogram]
	}
	size struct {
		*metrics.Vec[*metrics.Histogram]
	}
	result  struct{ *metrics.Vec[*metrics.Counter] }
	entries struct{ *metrics.Gauge }
)

// Observe counts the duration of one request.
func (l latency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	l.With(u.Host, verb).Took(took)
}

// Observe counts the size of one request or response.
func (s size) Observe(_ context.Context, verb, host string, bytes float64) {
	s.With(host, verb).Observe(bytes)
}

// Increment counts one response; code is "<error>" if there was none.
func (r result) Increment(_ context.Context, code, method, host string) {
	r.With(code, host, method).Inc()
}

// IncrementRetry counts a request that is sent again.
func (r result) IncrementRetry(_ context.Context, code, verb, host string) {
	r.With(code, host, verb).Inc()
}

// Observe sets how many transports are cached.
func (e entries) Observe(n int) { e.Set(float64(n)) }
