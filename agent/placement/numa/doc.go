// Package numa merges what CPUs, memory and devices ask of NUMA nodes, by the kubelet's topology manager policies.
//
// It is pure: it owns no data and does no I/O. A hint says that a request could be served from a set of NUMA nodes.
// Each resource gives all hints that are possible, and Policy.Merge selects the nodes for all resources together.
// agent/placement/policy calls it. A crash leaves nothing behind.
package numa
