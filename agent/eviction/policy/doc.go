// Package policy decides when the node runs short of memory, disk or processes, which pod is evicted for it, and
// which pod exceeds its limits of local storage.
//
// It is pure: levels, thresholds, pods, their usage and the remembered State go in; pressure, the threshold to act
// on, an order of pods and messages come out. It never reads the node, evicts nothing and uses no clock but the time
// it is given.
//
// Package eviction calls it. It keeps nothing: State is returned to the caller. A crash loses it, so the grace
// periods of soft thresholds and the transition periods of conditions start again.
package policy
