// Package metrics counts what the agent does and writes Prometheus' text format (version 0.0.4).
//
// It owns three kinds of instruments (Counter, Gauge, Histogram, each with or without labels), the Registry that lists them,
// the Text encoder that the handlers of /metrics, /metrics/cadvisor, /metrics/resource and /metrics/probes write with, and
// the set of instruments of the agent itself (Agent). Names, labels and buckets are the kubelet's, since dashboards and
// alerts query them.
//
// It never asks anybody for a value by itself: what is counted is told to it, what has a state is read by a function while
// somebody scrapes. There is no registry of the process: cmd makes one and hands the instruments out. Nothing is kept on
// disk; after a crash all counters begin at zero, as Prometheus expects of a process that is new.
package metrics
