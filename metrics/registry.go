package metrics

import (
	"compress/gzip"
	"context"
	"net/http"
	"strings"
	"sync"
)

// Registry lists what one endpoint exposes, in the order in which it was added.
type Registry struct {
	mu  sync.Mutex
	all []func(context.Context, *Text)
}

// Func adds a function that writes families whenever somebody scrapes. It should give up when ctx ends.
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

func (r *Registry) family(name, help string, kind Kind, write func(*Text)) {
	r.Func(func(_ context.Context, t *Text) {
		t.Family(name, help, kind)
		write(t)
	})
}

// Counter adds a counter without labels.
func (r *Registry) Counter(name, help string) *Counter {
	c := &Counter{}
	r.family(name, help, KindCounter, func(t *Text) { c.write(t, "") })
	return c
}

// Counters adds a family of counters with these label names.
func (r *Registry) Counters(name, help string, labels ...string) *Vec[*Counter] {
	v := newVec(func() *Counter { return &Counter{} }, labels)
	r.family(name, help, KindCounter, v.write)
	return v
}

// Gauge adds a gauge without labels.
func (r *Registry) Gauge(name, help string) *Gauge {
	g := &Gauge{}
	r.family(name, help, KindGauge, func(t *Text) { g.write(t, "") })
	return g
}

// Gauges adds a family of gauges with these label names.
func (r *Registry) Gauges(name, help string, labels ...string) *Vec[*Gauge] {
	v := newVec(func() *Gauge { return &Gauge{} }, labels)
	r.family(name, help, KindGauge, v.write)
	return v
}

// Histogram adds a histogram without labels. bounds are the upper bounds of its buckets, ascending.
func (r *Registry) Histogram(name, help string, bounds []float64) *Histogram {
	h := newHistogram(bounds)
	r.family(name, help, KindHistogram, func(t *Text) { h.write(t, "") })
	return h
}

// Histograms adds a family of histograms with these label names.
func (r *Registry) Histograms(name, help string, bounds []float64, labels ...string) *Vec[*Histogram] {
	v := newVec(func() *Histogram { return newHistogram(bounds) }, labels)
	r.family(name, help, KindHistogram, v.write)
	return v
}

// Handler answers scrapes of the registry, compressed where the scraper takes that.
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
		w.Header().Set("Content-Type", ContentType)
		if !strings.Contains(req.Header.Get("Accept-Encoding"), "gzip") {
			_, _ = w.Write(t.Bytes()) // an error is the scraper's: it has gone
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level is a valid one
		_, _ = z.Write(t.Bytes())
		_ = z.Close()
	})
}

// keepText is how large a text may be to be used again, in bytes: with hundreds of pods it is better made anew.
const keepText = 1 << 20

// texts keeps the memory of texts between scrapes that follow each other.
var texts = sync.Pool{New: func() any { return &Text{} }}
