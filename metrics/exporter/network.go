package exporter

import "github.com/nodelet/nodelet/cni"

// AddNetwork adds the instruments of the pods' network, and returns what counts a call of a network plugin, and what
// was released of removed sandboxes. The names are nodelet's own: the kubelet has no such metrics. Call it once.
func (e *Exporter) AddNetwork() (called func(cni.Call), released func(cni.Reaped)) {
	took := e.main.Histograms("nodelet_cni_plugin_duration_seconds", "Duration of a network plugin's run.",
		[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60}, "plugin", "verb")
	failed := e.main.Counters("nodelet_cni_plugin_errors_total", "Runs of a network plugin that failed.", "plugin", "verb")
	reclaimed := e.main.Counters("nodelet_cni_reclaimed_total", "What was given back of sandboxes that are gone.", "kind")
	called = func(c cni.Call) {
		took.With(c.Plugin, c.Verb).Took(c.Took)
		if c.Err != "" {
			failed.With(c.Plugin, c.Verb).Inc()
		}
	}
	return called, func(r cni.Reaped) {
		reclaimed.With("sandbox").Add(float64(len(r.Sandboxes)))
		reclaimed.With("address").Add(float64(len(r.Addresses)))
		reclaimed.With("device").Add(float64(len(r.Devices)))
	}
}
