// Package eviction ends pods when the node runs short of memory, disk or processes, and pods that take more of the
// node's disk than their limits allow.
//
// It owns the loop that reads levels, frees what no pod needs, and asks for evictions. Package policy, which is pure,
// decides which levels are too low, which pod is evicted and what its status says. The supervisor ends the pod, and the
// node's reporter publishes the conditions; this package does neither.
//
// cmd/nodelet creates one Evictor and runs it in parallel with the supervisor; admission asks it about new pods. It
// keeps nothing on disk. A crash loses how long thresholds have been crossed, so grace and transition periods start
// again; a pod whose eviction had begun is not evicted again unless the node is still short.
package eviction
