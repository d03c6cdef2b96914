package main

import (
	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/metrics"
)

// networkMeter counts what the pods' network costs and loses. Names are nodelet's own: the kubelet has nothing of the kind.
type networkMeter struct {
	took    *metrics.Vec[*metrics.Histogram]
	failed  *metrics.Vec[*metrics.Counter]
	reclaim *metrics.Vec[*metrics.Counter]
}

func (m *networkMeter) add(r *metrics.Registry) {
	m.took = r.Histograms("nodelet_cni_plugin_duration_seconds", "Duration of a network plugin's run.",
		[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60}, "plugin", "verb")
	m.failed = r.Counters("nodelet_cni_plugin_errors_total", "Runs of a network plugin that failed.", "plugin", "verb")
	m.reclaim = r.Counters("nodelet_cni_reclaimed_total", "What was given back of sandboxes that are gone.", "kind")
}

func (m *networkMeter) call(c cni.Call) {
	m.took.With(c.Plugin, c.Verb).Took(c.Took)
	if c.Err != "" {
		m.failed.With(c.Plugin, c.Verb).Inc()
	}
}

func (m *networkMeter) reaped(r cni.Reaped) {
	m.reclaim.With("sandbox").Add(float64(len(r.Sandboxes)))
	m.reclaim.With("address").Add(float64(len(r.Addresses)))
	m.reclaim.With("device").Add(float64(len(r.Devices)))
}
