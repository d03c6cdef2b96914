package eviction

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

// Amount is absolute, or a share of the capacity in percent where Quantity is nil.
type Amount struct {
	Quantity   *resource.Quantity
	Percentage float64
}

// of is the amount in the unit of the level.
func (a Amount) of(capacity int64) int64 {
	if a.Quantity != nil {
		return a.Quantity.Value()
	}
	return int64(float64(capacity) * float64(float32(a.Percentage)/100)) // in the kubelet's precision
}

// Threshold is a line below which pods are evicted.
type Threshold struct {
	Signal string
	Value  Amount
	// Grace is how long the level must have been below the line; 0 for a hard threshold.
	Grace time.Duration
	// Reclaim is how far above the line the level must come before that is over.
	Reclaim Amount
}

// Level is how much of something is left.
type Level struct {
	// Available and Capacity are in bytes, inodes or processes.
	Available, Capacity int64
}

// below: the level is under the line; with over, under the line and what is to be reclaimed beyond it.
func (t *Threshold) below(l Level, over bool) bool {
	line := t.Value.of(l.Capacity)
	if over {
		line += t.Reclaim.of(l.Capacity)
	}
	return l.Available < line
}

// Pressure says which resources run short.
type Pressure struct{ Memory, Disk, PID bool }

// Any: something runs short.
func (p Pressure) Any() bool { return p.Memory || p.Disk || p.PID }

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

// resourceOf is what people call that which runs short.
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

// OnDisk: the signal is about a file system, so that images that nobody uses can help.
func OnDisk(signal string) bool { return conditionOf(signal) == diskPressure }
