// Package usage says what the node, its pods and their containers use, whenever somebody asks: /stats/summary,
// /metrics/resource and /metrics/cadvisor.
//
// It owns the readers of cgroups (v1 and v2), of a network namespace's counters and of file systems, the book of what
// is known of each running container by its ID (names and images never change, so that the runtime is asked only
// about new ones), and the measured sizes of directories, which are walked in the background and never held against a
// request.
//
// Nothing happens at rest: no timer, no sampling. A rate (usageNanoCores) is that since the last request. It never
// changes anything on the node and decides nothing. cmd wires it and mounts its handlers at the node's API; eviction
// may read it. Nothing is kept on disk; a crash costs the walks of the directories.
package usage
