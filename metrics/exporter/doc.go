// Package exporter serves the metrics endpoints: /metrics, /metrics/cadvisor, /metrics/resource, /metrics/probes
// and /stats/summary.
//
// It owns the registries of these endpoints, and maps events of the agent, of probes and of the network to
// instruments. It measures nothing itself (package usage does) and never decides anything.
//
// cmd/nodelet creates one Exporter, passes its instruments to the packages that count, adds the values that are read on
// demand, and mounts the handlers in the kubelet API. It stores nothing: after a crash counters start at zero, as the
// kubelet's do.
package exporter
