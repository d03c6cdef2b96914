// Package policy decides whether a pod can have the CPUs, the memory and the devices that it asks for, and from which
// NUMA nodes, as the CPU, memory and topology managers of the kubelet do together.
//
// It is pure: it owns no data and does no I/O. State goes in and a new state comes out. agent/placement calls it when
// a pod is admitted, when a container has started and when a pod has ended. A crash leaves nothing behind.
package policy
