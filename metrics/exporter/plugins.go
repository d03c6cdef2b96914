package exporter

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nodelet/nodelet/metrics"
)

// AddDevicePlugins adds the metrics of device plugins, and returns what counts a plugin that has registered, and a call
// of a plugin for devices. Call it once.
func (e *Exporter) AddDevicePlugins() (registered func(resource string), allocated func(string, time.Duration)) {
	plugins := e.main.Counters("kubelet_device_plugin_registration_total",
		"[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.", "resource_name")
	calls := e.main.Histograms("kubelet_device_plugin_alloc_duration_seconds",
		"[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
		metrics.DefaultBuckets, "resource_name")
	return func(resource string) { plugins.With(resource).Inc() },
		func(resource string, took time.Duration) { calls.With(resource).Took(took) }
}

// AddCredentialProviders returns what shows the hash of the configuration of the credential providers, and what counts
// a run of the program of one. Call it once.
func (e *Exporter) AddCredentialProviders() (
	configured func(hash string), ran func(provider string, took time.Duration, err error)) {
	info := e.main.Gauges("kubelet_credential_provider_config_info",
		"[ALPHA] Information about the last applied credential provider configuration with hash as label", "hash")
	runs := e.main.Histograms("kubelet_credential_provider_plugin_duration",
		"[ALPHA] Duration of execution in seconds for credential provider plugin", metrics.DefaultBuckets, "plugin_name")
	failures := e.main.Counters("kubelet_credential_provider_plugin_errors_total",
		"[ALPHA] Number of errors from credential provider plugin", "plugin_name")
	return func(hash string) { info.With(hash).Set(1) },
		func(provider string, took time.Duration, err error) {
			runs.With(provider).Took(took)
			if err != nil {
				failures.With(provider).Inc()
			}
		}
}

// AddPlugins adds the plugins that are registered now, and the sockets at which plugins register. registered returns
// the names of plugins by type, a name maybe twice; sockets returns whether the plugin of each is registered.
func (e *Exporter) AddPlugins(registered func() map[string][]string, sockets func() map[string]bool) {
	e.main.Func(func(_ context.Context, t *metrics.Text) {
		t.Family("plugin_manager_total_plugins", "[ALPHA] Number of plugins in Plugin Manager", metrics.KindGauge)
		for socket, served := range sockets() {
			if served {
				t.Sample(1, "socket_path", socket, "state", "actual_state_of_world")
			}
			t.Sample(1, "socket_path", socket, "state", "desired_state_of_world")
		}
		t.Family("nodelet_plugin_registered", "Plugins that are registered with the node agent.", metrics.KindGauge)
		all := registered()
		for _, kind := range slices.Sorted(maps.Keys(all)) {
			for _, name := range slices.Compact(slices.Sorted(slices.Values(all[kind]))) {
				t.Sample(1, "type", kind, "name", name)
			}
		}
	})
}

// AddImageCollection returns what counts an image that was removed, because of its age or for space. Call it once.
func (e *Exporter) AddImageCollection() func(reason string) {
	total := e.main.Counters("kubelet_image_garbage_collected_total",
		"[ALPHA] Total number of images garbage collected by the kubelet, whether through disk usage or image age.", "reason")
	return func(reason string) { total.With(reason).Inc() }
}

// anyDriver is the label for all claims, whatever their drivers.
const anyDriver = "<any>"

// AddClaims adds the number of ResourceClaims in use; inUse returns it for all drivers together and by driver.
func (e *Exporter) AddClaims(inUse func() (total int, byDriver map[string]int)) {
	e.main.Func(func(_ context.Context, t *metrics.Text) {
		total, byDriver := inUse()
		t.Family("dra_resource_claims_in_use", "[ALPHA] The number of ResourceClaims that are currently in use on the node, "+
			"by driver name (driver_name label value) and across all drivers (special value <any> for driver_name). A claim "+
			"may use devices of several drivers, so the sum over the drivers is not the number of claims.", metrics.KindGauge)
		t.Sample(float64(total), "driver_name", anyDriver)
		for name, n := range byDriver {
			t.Sample(float64(n), "driver_name", name)
		}
	})
}
