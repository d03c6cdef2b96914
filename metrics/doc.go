// Package metrics counts what the agent does and writes Prometheus' text format (version 0.0.4).
//
// It owns three kinds of instruments (Counter, Gauge, Histogram, each with or without labels), the Registry that
// lists them, the Text encoder that the handlers of /metrics, /metrics/cadvisor, /metrics/resource and
// /metrics/probes write with, and the set of instruments of the agent itself (Agent). Names, labels and buckets are
// the kubelet's, since dashboards and alerts query them.
//
// It never collects a value itself: other packages count events in the instruments, and functions read current
// values during a scrape. There is no process-wide registry: package exporter has one for each endpoint and writes
// them. agent/instruments counts what the agent does, and package usage writes what it has measured. Nothing is stored
// on disk; after a crash all counters start at zero, as Prometheus expects of a new process.
package metrics
