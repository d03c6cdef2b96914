// Package cpu decides which containers get CPUs of their own, and which CPUs, as the kubelet's static CPU manager
// policy.
//
// It is pure: it owns no data and does no I/O. State is a value that callers copy before they let Policy change it.
// agent/placement/policy calls it when a pod is admitted and when one has ended. A crash leaves nothing behind.
//
// The shared pool are the CPUs that no container has for itself. A container of a Guaranteed pod that requests whole
// CPUs gets its own ones, taken from the shared pool, but never those that are reserved for the system.
package cpu
