// Package memory decides from which NUMA nodes containers get their memory and huge pages, as the kubelet's static
// memory manager policy.
//
// It is pure: it owns no data and does no I/O. State is a value that callers copy before they let Policy change it.
// agent/placement/policy calls it when a pod is admitted, when a container has started and when a pod has ended. A
// crash leaves nothing behind.
//
// Containers of Guaranteed pods are served. A NUMA node serves either containers that need one node only, or one
// group of nodes that serve containers together; so the memory of a node can be counted.
package memory
