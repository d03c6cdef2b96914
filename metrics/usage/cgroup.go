package usage

import (
	"bytes"
	"os"
	"path/filepath"
	"time"

	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Usage has the values of one cgroup. Times are in nanoseconds, sizes in bytes; counters start at the creation of the
// cgroup.
type Usage struct {
	At time.Time
	CPUUsage
	MemoryUsage
	// HasSpecs reports whether the limits of CPU and memory are known.
	HasSpecs bool

	Processes, Threads, MaxThreads uint64

	IO         []DeviceIO
	IOPressure *api.PSIStats
}

// CPUUsage has the values of the controllers cpu and cpuacct.
type CPUUsage struct {
	HasCPU             bool
	CPU, User, System  uint64
	Periods, Throttled uint64
	ThrottledTime      uint64
	Shares, Period     uint64
	Quota              int64 // µs per period; 0 means no quota
	CPUPressure        *api.PSIStats
}

// MemoryUsage has the values of the controller memory.
type MemoryUsage struct {
	HasMemory                      bool
	Memory, WorkingSet, RSS, Cache uint64
	Mapped, Kernel, Swap           uint64
	ActiveFile, InactiveFile       uint64
	MaxMemory, FailCount, OOMKills uint64
	Events                         MemoryEvents
	// Faults and MajorFaults count the cgroup itself, Tree the same with the cgroups below it.
	PageFaults
	Tree PageFaults
	// MemoryLimit and SwapLimit have the value unlimited if there is no limit. On cgroup v1, SwapLimit includes memory, as
	// in the kubelet.
	MemoryLimit, SwapLimit, Reservation uint64
	MemoryPressure                      *api.PSIStats
}

// Limited reports whether the cgroup has a memory limit.
func (u *MemoryUsage) Limited() bool { return u.HasMemory && u.MemoryLimit < unlimited }

// MemoryEvents counts how often memory.high and memory.max were reached, and the OOM kills of the cgroup and those
// below it; always 0 on cgroup v1.
type MemoryEvents struct {
	High, Max, TreeOOMKills uint64
	Reclaim                 MemoryReclaim
}

// MemoryReclaim has what memory.stat says of the file cache that is on its way to the disk, in bytes, and of reclaimed
// pages; always 0 on cgroup v1, as in the kubelet.
type MemoryReclaim struct{ Dirty, Writeback, Scanned, Reclaimed, RefaultedFile, RefaultedAnon uint64 }

// PageFaults counts page faults, all of them and those that read from the disk.
type PageFaults struct{ Faults, MajorFaults uint64 }

// DeviceIO counts what a cgroup has read from and written to a block device.
type DeviceIO struct {
	// Device is its path in /dev, which is looked up later; empty if the kernel has no name for it.
	Device                               string
	Major, Minor                         uint64
	ReadBytes, WriteBytes, Reads, Writes uint64
	SyncBytes, AsyncBytes                uint64
	hasSync                              bool
}

// Detail selects which values of a cgroup are read.
type Detail int

// The details: None reads nothing. Basic reads CPU, memory and swap, for /metrics/resource. Pressure adds the pressure
// on CPU and memory, for /stats/summary with these alone. Plain adds that on I/O and the number of processes, for the
// whole summary. Full reads all values.
const (
	None Detail = iota
	Basic
	Pressure
	Plain
	Full
)

// Hierarchy reads cgroups below the machine's cgroup mounts.
type Hierarchy struct {
	// mounts has the directories of the controllers of v1; nil on v2.
	mounts map[string]string
	// unified is the mount point of v2.
	unified string
}

// unifiedMount is the mount point of cgroup v2 on every system that has only cgroup v2.
const unifiedMount = "/sys/fs/cgroup"

// NewHierarchy returns a reader. mounts has the mount points of the controllers of cgroup v1; if it is empty, the
// reader uses cgroup v2.
func NewHierarchy(mounts map[string]string) *Hierarchy {
	if len(mounts) == 0 {
		return &Hierarchy{unified: unifiedMount}
	}
	return &Hierarchy{mounts: mounts}
}

// dir returns the directory of a cgroup in one controller; empty if the controller is not mounted.
func (h *Hierarchy) dir(controller, cgroup string) string {
	if h.mounts == nil {
		return filepath.Join(h.unified, cgroup)
	}
	mount := h.mounts[controller]
	if mount == "" {
		return ""
	}
	return filepath.Join(mount, cgroup)
}

// walked is the controller whose directories are listed to find cgroups.
const walked = "memory"

// children returns the names of the cgroups directly below one; none if it does not exist.
func (h *Hierarchy) children(cgroup string) []string {
	entries, err := os.ReadDir(h.dir(walked, cgroup))
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// born returns the time at which a cgroup was created; zero if it does not exist. The time of the directory may move
// when a cgroup is made in it, but not that of files that nobody writes.
func (h *Hierarchy) born(cgroup string) (at time.Time) {
	for _, name := range []string{".", "cgroup.events", "cgroup.clone_children"} {
		info, err := os.Stat(filepath.Join(h.dir(walked, cgroup), name))
		if err == nil && (at.IsZero() || info.ModTime().Before(at)) {
			at = info.ModTime()
		}
	}
	return at
}

// process returns the PID of one process in the cgroup, or else in one below it: crun puts a container into a cgroup
// below that of its scope. It returns 0 if there is none.
func (h *Hierarchy) process(cgroup string) int {
	pid := 0
	withFile(filepath.Join(h.dir(walked, cgroup), "cgroup.procs"), func(text []byte) {
		line, _, _ := bytes.Cut(text, []byte{'\n'})
		if v, ok := parseUint(line); ok && v < 1<<31 {
			pid = int(v)
		}
	})
	if pid != 0 {
		return pid
	}
	for _, child := range h.children(cgroup) {
		if pid := h.process(filepath.Join(cgroup, child)); pid != 0 {
			return pid
		}
	}
	return 0
}

// empty reports whether no process is left in a cgroup and in those below it. It returns false if that cannot be read.
func (h *Hierarchy) empty(cgroup string) bool {
	if h.mounts != nil {
		dir := h.dir("pids", cgroup)
		n, ok := readUint(filepath.Join(dir, "pids.current"))
		return dir != "" && ok && n == 0
	}
	populated := uint64(1)
	readKeyed(filepath.Join(h.dir("", cgroup), "cgroup.events"), map[string]*uint64{"populated": &populated})
	return populated == 0
}

// processes returns the number of processes in the cgroup of dir itself.
func processes(dir string) (n uint64) {
	withFile(filepath.Join(dir, "cgroup.procs"), func(text []byte) {
		n = uint64(bytes.Count(text, []byte{'\n'}))
	})
	return n
}

// read returns the usage of a cgroup. ok is false if the cgroup does not exist.
func (h *Hierarchy) read(cgroup string, d Detail) (u Usage, ok bool) {
	u.At = time.Now()
	if h.mounts == nil {
		h.readV2(h.dir("", cgroup), d, &u)
	} else {
		h.readV1(cgroup, d, &u)
	}
	return u, u.HasCPU || u.HasMemory
}

// ContainerMemory returns how much memory a container uses, in bytes; pod is the cgroup of its pod. ok is false if the
// container has no cgroup with processes there.
func (h *Hierarchy) ContainerMemory(pod, id string) (bytes uint64, ok bool) {
	for _, name := range h.children(pod) {
		if cgroup := filepath.Join(pod, name); containerID(name) == id && !h.empty(cgroup) {
			u, _ := h.read(cgroup, Basic)
			return u.Memory, u.HasMemory
		}
	}
	return 0, false
}
