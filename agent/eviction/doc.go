// Package eviction decides when the node runs short of memory, disk or processes, which pod has to go for it, and which pod takes
// more of the node's disk than it may.
//
// It is pure: levels, thresholds, pods, what they take and what was remembered go in; pressure, the threshold to act on, an order
// of pods and the words for people come out. It never reads the node, evicts nothing and knows no clock but the one it is given.
//
// The agent's evictor calls it. It keeps nothing: what it remembers (State) is handed back to the caller, and losing that in
// a crash costs the grace period of soft thresholds and the transition period of conditions, which begin anew.
package eviction
