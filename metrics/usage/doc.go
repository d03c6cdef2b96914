// Package usage measures what the node, its pods and their containers use, on request: /stats/summary,
// /metrics/resource and /metrics/cadvisor.
//
// It owns the readers of cgroups (v1 and v2), of the counters of a network namespace and of file systems, the names
// and images of the running containers by ID (they never change, so that the runtime is asked only about new
// containers), and the measured sizes of directories. A goroutine walks the directories in the background, so that a
// request does not wait for a long walk.
//
// The package does not sample: without a request it does nothing, except that WatchHealth asks the drivers of
// volumes. A rate (usageNanoCores) is the average since the last request. The package never changes anything on the
// node and decides nothing. cmd/nodelet creates the collector and mounts its handlers in the kubelet API;
// agent/eviction reads the usage of local disks. A crash leaves nothing behind: the next process walks the directories
// again.
package usage
