// Package state reads and writes the files in which the kubelet keeps who has which CPUs and which memory, in the
// kubelet's form, so that a node can switch between the kubelet and this agent while pods have exclusive CPUs; and what
// pods hold that were resized.
//
// It converts between bytes and values and never looks at the disk: agent/placement, which alone calls it, does. A
// crash leaves nothing of it behind.
//
// Each file of the CPU and memory managers holds the data twice: as text with a checksum of its own, which is what
// kubelet 1.37 reads, and as fields for older kubelets. The checksum of the fields is over a text that holds the names
// of the kubelet's Go types. So the types here, and this package, have the same names.
package state
