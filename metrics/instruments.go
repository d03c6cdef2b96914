package metrics

import (
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Counter is a value that only increases.
type Counter struct{ bits atomic.Uint64 }

// Inc adds one.
func (c *Counter) Inc() { c.Add(1) }

// Add adds v, which must not be negative.
func (c *Counter) Add(v float64) { addFloat(&c.bits, v) }

func (c *Counter) write(t *Text, rendered string) { t.Rendered(loadFloat(&c.bits), 0, rendered) }

// Gauge is a value that can increase and decrease.
type Gauge struct{ bits atomic.Uint64 }

// Set replaces the value.
func (g *Gauge) Set(v float64) { g.bits.Store(math.Float64bits(v)) }

// Add adds to the value.
func (g *Gauge) Add(v float64) { addFloat(&g.bits, v) }

func (g *Gauge) write(t *Text, rendered string) { t.Rendered(loadFloat(&g.bits), 0, rendered) }

// Histogram counts observed values in buckets.
type Histogram struct {
	bounds []float64
	counts []atomic.Uint64 // one more than bounds: the last has no bound
	sum    atomic.Uint64
}

func newHistogram(bounds []float64) *Histogram {
	return &Histogram{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
}

// Observe counts one value.
func (h *Histogram) Observe(v float64) {
	i, _ := slices.BinarySearch(h.bounds, v) // a value equal to a bound belongs to its bucket
	h.counts[i].Add(1)
	addFloat(&h.sum, v)
}

// Took counts a duration, in seconds.
func (h *Histogram) Took(d time.Duration) { h.Observe(d.Seconds()) }

func (h *Histogram) write(t *Text, rendered string) {
	counts := make([]uint64, len(h.counts))
	for i := range h.counts {
		counts[i] = h.counts[i].Load()
	}
	t.histogram(h.bounds, counts, loadFloat(&h.sum), rendered)
}

func addFloat(bits *atomic.Uint64, v float64) {
	for {
		old := bits.Load()
		if bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v)) {
			return
		}
	}
}

func loadFloat(bits *atomic.Uint64) float64 { return math.Float64frombits(bits.Load()) }

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

func newVec[I instrument](fresh func() I, names []string) *Vec[I] {
	return &Vec[I]{names: names, make: fresh, all: map[string]*labelled[I]{}}
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
	for key, l := range v.all {
		if match(l.values) {
			delete(v.all, key)
		}
	}
}

func (v *Vec[I]) write(t *Text) {
	v.mu.RLock()
	all := make([]*labelled[I], 0, len(v.all))
	for _, l := range v.all {
		all = append(all, l)
	}
	v.mu.RUnlock()
	slices.SortFunc(all, func(a, b *labelled[I]) int { return strings.Compare(a.rendered, b.rendered) })
	for _, l := range all {
		l.instrument.write(t, l.rendered)
	}
}
