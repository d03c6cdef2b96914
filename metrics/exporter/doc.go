// Package exporter serves what is counted and measured: /metrics, /metrics/cadvisor, /metrics/resource, /metrics/probes
// and /stats/summary.
//
// It owns the registries of these endpoints, and says in the terms of the agent, of probes and of the network what
// counts as what. It measures nothing itself (package usage does) and never decides anything.
//
// cmd makes one Exporter, hands its instruments to the packages that count, adds what is read on demand, and mounts the
// handlers in the node's API. It keeps nothing: after a crash counters begin at zero, as the kubelet's.
package exporter
