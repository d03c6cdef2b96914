package metrics

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// number is a value that many goroutines can change.
type number struct{ bits atomic.Uint64 }

// Add adds v, which must not be negative for a counter.
func (n *number) Add(v float64) {
	for {
		old := n.bits.Load()
		if n.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v)) {
			return
		}
	}
}

func (n *number) load() float64 { return math.Float64frombits(n.bits.Load()) }

func (n *number) write(t *Text, rendered string) { t.Rendered(n.load(), 0, rendered) }

// Counter is a value that only increases.
type Counter struct{ number }

// Inc adds one.
func (c *Counter) Inc() { c.Add(1) }

// Gauge is a value that can increase and decrease.
type Gauge struct{ number }

// Set replaces the value.
func (g *Gauge) Set(v float64) { g.bits.Store(math.Float64bits(v)) }

// Histogram counts observed values in buckets.
type Histogram struct {
	bounds []float64
	counts []atomic.Uint64 // one more than bounds: the last has no bound
	sum    number
}

func newHistogram(bounds []float64) *Histogram {
	return &Histogram{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
}

// Observe counts one value.
func (h *Histogram) Observe(v float64) {
	i, _ := slices.BinarySearch(h.bounds, v) // a value equal to a bound belongs to its bucket
	h.counts[i].Add(1)
	h.sum.Add(v)
}

// Took counts a duration, in seconds.
func (h *Histogram) Took(d time.Duration) { h.Observe(d.Seconds()) }

// write writes cumulative buckets, sum and count.
func (h *Histogram) write(t *Text, rendered string) {
	var all uint64
	for i := range h.counts {
		all += h.counts[i].Load()
		bound := math.Inf(1)
		if i < len(h.bounds) {
			bound = h.bounds[i]
		}
		t.line("_bucket", float64(all), 0, rendered, "le", formatFloat(bound))
	}
	t.line("_sum", h.sum.load(), 0, rendered)
	t.line("_count", float64(all), 0, rendered)
}

// instrument is a Counter, Gauge or Histogram. A Vec has one for each set of label values.
type instrument interface {
	write(t *Text, rendered string)
}

// Vec is a family of instruments that differ in the values of their labels.
type Vec[I instrument] struct {
	names []string
	make  func() I

	mu  sync.RWMutex
	all map[string]*labelled[I]
}

type labelled[I instrument] struct {
	values     []string
	rendered   string
	instrument I
}

// newVec adds a family of instruments to a registry.
func newVec[I instrument](r *Registry, name, help string, kind Kind, fresh func() I, labels []string) *Vec[I] {
	v := &Vec[I]{names: labels, make: fresh, all: map[string]*labelled[I]{}}
	r.Func(func(_ context.Context, t *Text) {
		t.Family(name, help, kind)
		v.write(t)
	})
	return v
}

// With gives the instrument for these label values, in the order of the label names. The first call
// creates it.
func (v *Vec[I]) With(values ...string) I {
	if len(values) != len(v.names) {
		panic("metrics: labels " + strings.Join(v.names, ", ") + " need as many values, got " + strings.Join(values, ", "))
	}
	key := strings.Join(values, "\xff")
	v.mu.RLock()
	found := v.all[key]
	v.mu.RUnlock()
	if found != nil {
		return found.instrument
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if found = v.all[key]; found == nil {
		pairs := make([]string, 0, 2*len(values))
		for i, name := range v.names {
			pairs = append(pairs, name, values[i])
		}
		found = &labelled[I]{values: slices.Clone(values), rendered: Labels(pairs...), instrument: v.make()}
		v.all[key] = found
	}
	return found.instrument
}

// Forget removes the instruments whose label values match, so that objects which no longer exist on the node are not
// exposed for ever.
func (v *Vec[I]) Forget(match func(values []string) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.all, func(_ string, l *labelled[I]) bool { return match(l.values) })
}

func (v *Vec[I]) write(t *Text) {
	v.mu.RLock()
	all := slices.Collect(maps.Values(v.all))
	v.mu.RUnlock()
	slices.SortFunc(all, func(a, b *labelled[I]) int { return strings.Compare(a.rendered, b.rendered) })
	for _, l := range all {
		l.instrument.write(t, l.rendered)
	}
}
