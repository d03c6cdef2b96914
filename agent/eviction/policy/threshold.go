package policy

import (
	"time"

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

// Pressure says which resources run short.
type Pressure struct{ Memory, Disk, PID bool }

// Or returns the conditions of both.
func (p Pressure) Or(q Pressure) Pressure {
	return Pressure{Memory: p.Memory || q.Memory, Disk: p.Disk || q.Disk, PID: p.PID || q.PID}
}

// Any reports whether any resource runs short.
func (p Pressure) Any() bool { return p.Memory || p.Disk || p.PID }

// About returns the conditions that thresholds are about.
func About(all []Threshold) (p Pressure) {
	for _, t := range all {
		switch conditionOf(t.Signal) {
		case memoryPressure:
			p.Memory = true
		case diskPressure:
			p.Disk = true
		case pidPressure:
			p.PID = true
		}
	}
	return p
}

// condition is which part of Pressure a signal belongs to.
type condition int

const (
	memoryPressure condition = iota
	diskPressure
	pidPressure
	conditions
)

func conditionOf(signal string) condition {
	switch signal {
	case MemoryAvailable, AllocatableAvailable:
		return memoryPressure
	case PIDAvailable:
		return pidPressure
	}
	return diskPressure
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

// OnMemory reports whether the signal is about memory.
func OnMemory(signal string) bool { return conditionOf(signal) == memoryPressure }

// OnNodeFS reports whether the signal is about the file system of the agent's directory.
func OnNodeFS(signal string) bool { return signal == NodeFSAvailable || signal == NodeFSInodes }

// OnContainerFS reports whether the signal is about the file system of the writable layers.
func OnContainerFS(signal string) bool {
	return signal == ContainerFSAvailable || signal == ContainerFSInodes
}

// OnDisk reports whether the signal is about a file system.
func OnDisk(signal string) bool { return conditionOf(signal) == diskPressure }
