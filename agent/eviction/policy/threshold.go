package policy

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The signals, as the KubeletConfiguration names them.
const (
	MemoryAvailable      = "memory.available"
	AllocatableAvailable = "allocatableMemory.available"
	NodeFSAvailable      = "nodefs.available"
	NodeFSInodes         = "nodefs.inodesFree"
	ImageFSAvailable     = "imagefs.available"
	ImageFSInodes        = "imagefs.inodesFree"
	ContainerFSAvailable = "containerfs.available"
	ContainerFSInodes    = "containerfs.inodesFree"
	PIDAvailable         = "pid.available"
)

// Signals are all signals.
var Signals = []string{
	MemoryAvailable, AllocatableAvailable, NodeFSAvailable, NodeFSInodes, ImageFSAvailable, ImageFSInodes,
	ContainerFSAvailable, ContainerFSInodes, PIDAvailable,
}

// Amount is absolute, or a percentage of the capacity if Quantity is nil.
type Amount struct {
	Quantity   *resource.Quantity
	Percentage float64
}

// of returns the amount in the unit of the level.
func (a Amount) of(capacity int64) int64 {
	if a.Quantity != nil {
		return a.Quantity.Value()
	}
	return int64(float64(capacity) * float64(float32(a.Percentage)/100)) // in the kubelet's precision
}

// Threshold is a level below which pods are evicted.
type Threshold struct {
	Signal string
	Value  Amount
	// Grace is how long the level must have been below it; 0 for a hard threshold.
	Grace time.Duration
	// Reclaim is how far the level must rise above it before evictions end.
	Reclaim Amount
}

// Level is how much of something is left.
type Level struct {
	// Available and Capacity are in bytes, inodes or processes.
	Available, Capacity int64
}

// below reports whether the level is below the threshold; with reclaim, below the threshold and the minimum reclaim.
func (t *Threshold) below(l Level, reclaim bool) bool {
	value := t.Value.of(l.Capacity)
	if reclaim {
		value += t.Reclaim.of(l.Capacity)
	}
	return l.Available < value
}

// Conditions are the conditions of a node that runs short, in the order in which messages name them.
var Conditions = []corev1.NodeConditionType{
	corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
}

// Pressure says of each condition that is known whether it holds.
type Pressure map[corev1.NodeConditionType]bool

// Holding returns the conditions that hold.
func (p Pressure) Holding() (all []corev1.NodeConditionType) {
	for _, c := range Conditions {
		if p[c] {
			all = append(all, c)
		}
	}
	return all
}

// ConditionOf returns the condition that a signal belongs to.
func ConditionOf(signal string) corev1.NodeConditionType {
	switch signal {
	case MemoryAvailable, AllocatableAvailable:
		return corev1.NodeMemoryPressure
	case PIDAvailable:
		return corev1.NodePIDPressure
	}
	return corev1.NodeDiskPressure
}

// resourceOf is the resource of a signal, as messages name it.
func resourceOf(signal string) string {
	switch signal {
	case MemoryAvailable, AllocatableAvailable:
		return "memory"
	case PIDAvailable:
		return "pids"
	case NodeFSInodes, ImageFSInodes, ContainerFSInodes:
		return "inodes"
	}
	return "ephemeral-storage"
}

// WithAllocatable adds to each hard threshold of the node's memory the same for the memory of all pods together. It
// holds where that is bounded.
func WithAllocatable(all []Threshold) []Threshold {
	for _, t := range all {
		if t.Signal == MemoryAvailable && t.Grace == 0 {
			t.Signal = AllocatableAvailable
			all = append(all, t)
		}
	}
	return all
}

// WithContainerFS gives the file system of the writable layers the thresholds of the node's, hard and soft each, if it
// has none of its own. They hold where it is neither the node's nor that of images: the level of containerfs is known
// only there.
func WithContainerFS(all []Threshold) []Threshold {
	same := map[string]string{NodeFSAvailable: ContainerFSAvailable, NodeFSInodes: ContainerFSInodes}
	given := all
	for _, t := range given {
		signal, onNode := same[t.Signal]
		hasOwn := func(own Threshold) bool { return own.Signal == signal && (own.Grace == 0) == (t.Grace == 0) }
		if !onNode || slices.ContainsFunc(given, hasOwn) {
			continue
		}
		t.Signal = signal
		all = append(all, t)
	}
	return all
}

// OnMemory reports whether the signal is about memory.
func OnMemory(signal string) bool { return ConditionOf(signal) == corev1.NodeMemoryPressure }

// OnNodeFS reports whether the signal is about the file system of the agent's directory.
func OnNodeFS(signal string) bool { return signal == NodeFSAvailable || signal == NodeFSInodes }

// OnContainerFS reports whether the signal is about the file system of the writable layers.
func OnContainerFS(signal string) bool {
	return signal == ContainerFSAvailable || signal == ContainerFSInodes
}

// OnDisk reports whether the signal is about a file system.
func OnDisk(signal string) bool { return ConditionOf(signal) == corev1.NodeDiskPressure }
