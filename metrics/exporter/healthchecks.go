package exporter

import (
	"context"
	"net/http"
	"time"

	"github.com/nodelet/nodelet/metrics"
)

// AddHealthChecks adds /metrics/slis (KEP-3466) and returns what counts the result of a check of /healthz. Call it
// once.
func (e *Exporter) AddHealthChecks() func(name string, healthy bool) {
	var r metrics.Registry
	last := r.Gauges("kubernetes_healthcheck", "[STABLE] This metric records the result of a single healthcheck.",
		"name", "type")
	total := r.Counters("kubernetes_healthchecks_total", "[STABLE] This metric records the results of all healthcheck.",
		"name", "status", "type")
	metrics.AddProcessStart(&r)
	scrape := r.Handler()
	e.mount("/metrics/slis", "metrics", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodDelete {
			all := func([]string) bool { return true }
			last.Forget(all)
			total.Forget(all)
			_, _ = w.Write([]byte("metrics reset\n"))
			return
		}
		scrape.ServeHTTP(w, req)
	}))
	return func(name string, healthy bool) {
		status := "error"
		if healthy {
			status = "success"
		}
		last.With(name, "healthz").Set(metrics.Flag(healthy))
		total.With(name, status, "healthz").Inc()
	}
}

// AddShutdown adds the times of the last graceful shutdown; zero if there was none.
func (e *Exporter) AddShutdown(times func() (began, ended time.Time)) {
	e.main.Func(func(_ context.Context, t *metrics.Text) {
		began, ended := times()
		for _, f := range []struct {
			name, help string
			at         time.Time
		}{
			{"start", "Last graceful shutdown start time since unix epoch in seconds", began},
			{"end", "Last graceful shutdown end time since unix epoch in seconds", ended},
		} {
			seconds := 0.0
			if !f.at.IsZero() {
				seconds = float64(f.at.Unix())
			}
			t.Gauge("kubelet_graceful_shutdown_"+f.name+"_time_seconds", "[ALPHA] "+f.help, seconds)
		}
	})
}
