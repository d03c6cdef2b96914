package exporter

import (
	"time"

	"github.com/nodelet/nodelet/metrics"
)

// DevicePlugins counts what device plugins do. It implements devices.Meter.
type DevicePlugins struct {
	registered *metrics.Vec[*metrics.Counter]
	allocation *metrics.Vec[*metrics.Histogram]
}

// AddDevicePlugins adds the metrics of device plugins. Call it once.
func (e *Exporter) AddDevicePlugins() *DevicePlugins {
	return &DevicePlugins{
		registered: e.main.Counters("kubelet_device_plugin_registration_total",
			"[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.", "resource_name"),
		allocation: e.main.Histograms("kubelet_device_plugin_alloc_duration_seconds",
			"[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
			metrics.DefaultBuckets, "resource_name"),
	}
}

// Registered counts a plugin that has registered.
func (d *DevicePlugins) Registered(resource string) { d.registered.With(resource).Inc() }

// Allocated counts a call of a plugin for devices.
func (d *DevicePlugins) Allocated(resource string, took time.Duration) {
	d.allocation.With(resource).Took(took)
}

// AddImageCollection returns what counts an image that was removed, because of its age or for space. Call it once.
func (e *Exporter) AddImageCollection() func(reason string) {
	total := e.main.Counters("kubelet_image_garbage_collected_total",
		"[ALPHA] Total number of images garbage collected by the kubelet, whether through disk usage or image age.", "reason")
	return func(reason string) { total.With(reason).Inc() }
}
