// Package eviction ends pods when the node runs short of memory, disk or processes, and pods that take more of the
// node's disk than their limits allow.
//
// It owns the loop that reads levels, frees what no pod needs, and chooses and ends pods. Which levels are too low,
// which pod goes and what its status says is decided by package policy, which is pure. It never ends a pod itself:
// the supervisor does. It publishes no conditions: the node's reporter does.
//
// cmd makes one Evictor and runs it beside the supervisor; admission asks it about new pods. It keeps nothing on
// disk. A crash loses how long thresholds have been crossed, so grace and transition periods start again; a pod whose
// eviction had begun is not evicted again unless the node is still short.
package eviction
