package metrics

import (
	"compress/gzip"
	"context"
	"net/http"
	"strings"
	"sync"
)

// Registry has the families that one endpoint exposes, in the order in which they were added.
type Registry struct {
	mu  sync.Mutex
	all []func(context.Context, *Text)
}

// Func adds a function that writes families at each scrape. It should return when ctx ends.
func (r *Registry) Func(f func(ctx context.Context, t *Text)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, f)
}

// Write writes all families.
func (r *Registry) Write(ctx context.Context, t *Text) {
	r.mu.Lock()
	all := r.all
	r.mu.Unlock()
	for _, f := range all {
		f(ctx, t)
	}
}

// Counter adds a counter without labels.
func (r *Registry) Counter(name, help string) *Counter { return r.Counters(name, help).With() }

// Counters adds a family of counters with these label names.
func (r *Registry) Counters(name, help string, labels ...string) *Vec[*Counter] {
	return newVec(r, name, help, KindCounter, func() *Counter { return &Counter{} }, labels)
}

// Gauge adds a gauge without labels.
func (r *Registry) Gauge(name, help string) *Gauge { return r.Gauges(name, help).With() }

// Gauges adds a family of gauges with these label names.
func (r *Registry) Gauges(name, help string, labels ...string) *Vec[*Gauge] {
	return newVec(r, name, help, KindGauge, func() *Gauge { return &Gauge{} }, labels)
}

// Histogram adds a histogram without labels. bounds are the upper bounds of its buckets, ascending.
func (r *Registry) Histogram(name, help string, bounds []float64) *Histogram {
	return r.Histograms(name, help, bounds).With()
}

// Histograms adds a family of histograms with these label names.
func (r *Registry) Histograms(name, help string, bounds []float64, labels ...string) *Vec[*Histogram] {
	return newVec(r, name, help, KindHistogram, func() *Histogram { return newHistogram(bounds) }, labels)
}

// Handler serves scrapes of the registry, with gzip compression if the client accepts it.
func (r *Registry) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		t := texts.Get().(*Text)
		defer func() {
			if cap(t.buf) <= keepText {
				t.Reset()
				texts.Put(t)
			}
		}()
		t.Reset()
		r.Write(req.Context(), t)
		w.Header().Set("Content-Type", contentType)
		if !strings.Contains(req.Header.Get("Accept-Encoding"), "gzip") {
			_, _ = w.Write(t.Bytes()) // an error means that the client has disconnected
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // fails only for an invalid level
		_, _ = z.Write(t.Bytes())
		_ = z.Close()
	})
}

// keepText is the size in bytes up to which the buffer of a text is reused. Larger ones, on nodes with hundreds of
// pods, are freed.
const keepText = 1 << 20

// texts reuses the buffers of texts for later scrapes.
var texts = sync.Pool{New: func() any { return &Text{} }}
