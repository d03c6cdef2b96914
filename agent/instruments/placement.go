package instruments

import (
	"strconv"
	"time"

	"github.com/nodelet/nodelet/agent/placement/policy"
	"github.com/nodelet/nodelet/metrics"
	"github.com/nodelet/nodelet/metrics/exporter"
)

// Placement counts what package placement does.
type Placement struct {
	m *metrics.Managers
	// nodes are the NUMA nodes of which containers have had CPUs. Only placement, under its lock, uses it.
	nodes map[int]bool
}

// NewPlacement returns metrics that count in the instruments of e. Call it once.
func NewPlacement(e *exporter.Exporter) *Placement {
	return &Placement{e.AddManagers(), map[int]bool{}}
}

// Decided implements placement.Metrics.
func (p *Placement) Decided(took time.Duration, refused bool, c policy.Count) {
	p.m.Decisions.Inc()
	p.m.DecisionTook.Observe(float64(took.Milliseconds()))
	if refused {
		p.m.Refusals.Inc()
	}
	p.m.CPUs.Add(float64(c.CPUs))
	p.m.CPUErrors.Add(float64(c.CPUErrors))
	p.m.Memory.Add(float64(c.Memory))
	p.m.MemoryErrors.Add(float64(c.MemoryErrors))
	for what, n := range c.Aligned {
		p.m.Aligned.With(what.Scope, what.Boundary).Add(float64(n))
	}
	for what, n := range c.Misaligned {
		p.m.AlignedFailure.With(what.Scope, what.Boundary).Add(float64(n))
	}
	add(p.m.Allocations, c.Allocations)
	add(p.m.AllocationErrors, c.AllocationErrors)
	add(p.m.Assignments, c.Assignments)
}

func add(to *metrics.Vec[*metrics.Counter], shares map[policy.Share]int) {
	for what, n := range shares {
		to.With(what.Resource, what.Of).Add(float64(n))
	}
}

// CPUs implements placement.Metrics.
func (p *Placement) CPUs(free, exclusive int, perNode map[int]int) {
	p.m.Shared.Set(float64(free) * 1000)
	p.m.Exclusive.Set(float64(exclusive))
	for node := range perNode {
		p.nodes[node] = true
	}
	for node := range p.nodes {
		p.m.PerNode.With(strconv.Itoa(node)).Set(float64(perNode[node]))
	}
}
