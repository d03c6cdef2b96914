package exporter

import (
	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/metrics"
)

// Network counts the calls of network plugins and the resources of removed sandboxes that were released. The names are
// nodelet's own: the kubelet has no such metrics.
type Network struct {
	took    *metrics.Vec[*metrics.Histogram]
	failed  *metrics.Vec[*metrics.Counter]
	reclaim *metrics.Vec[*metrics.Counter]
}

// AddNetwork adds the instruments of the pods' network.
func (e *Exporter) AddNetwork() *Network {
	m, r := &Network{}, &e.main
	m.took = r.Histograms("nodelet_cni_plugin_duration_seconds", "Duration of a network plugin's run.",
		[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60}, "plugin", "verb")
	m.failed = r.Counters("nodelet_cni_plugin_errors_total", "Runs of a network plugin that failed.", "plugin", "verb")
	m.reclaim = r.Counters("nodelet_cni_reclaimed_total", "What was given back of sandboxes that are gone.", "kind")
	return m
}

// Called counts a call of a plugin.
func (m *Network) Called(c cni.Call) {
	m.took.With(c.Plugin, c.Verb).Took(c.Took)
	if c.Err != "" {
		m.failed.With(c.Plugin, c.Verb).Inc()
	}
}

// Released counts the sandboxes, addresses and devices that were released.
func (m *Network) Released(r cni.Reaped) {
	m.reclaim.With("sandbox").Add(float64(len(r.Sandboxes)))
	m.reclaim.With("address").Add(float64(len(r.Addresses)))
	m.reclaim.With("device").Add(float64(len(r.Devices)))
}
