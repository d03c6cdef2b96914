package usage

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is what the kernel says of one cgroup. Times are nanoseconds, sizes bytes; counters begin with the cgroup.
type Usage struct {
	At time.Time

	CPU, User, System           uint64
	Periods, Throttled          uint64
	ThrottledTime               uint64
	Shares, Period              uint64
	Quota                       int64 // of a period, in µs; 0: none
	HasCPU, HasMemory, HasSpecs bool

	Memory, WorkingSet, RSS, Cache uint64
	Mapped, Kernel, Swap           uint64
	ActiveFile, InactiveFile       uint64
	MaxMemory, FailCount, OOMKills uint64
	// Faults count the cgroup alone, TreeFaults those below it as well.
	Faults, MajorFaults         uint64
	TreeFaults, TreeMajorFaults uint64
	// MemoryLimit and SwapLimit are unlimited where there is none. SwapLimit is of swap alone.
	MemoryLimit, SwapLimit, Reservation uint64

	Processes, Threads, MaxThreads uint64

	IO []DeviceIO

	CPUPressure, MemoryPressure, IOPressure *Pressure
}

// DeviceIO is what a cgroup read from and wrote to a block device.
type DeviceIO struct {
	// Device is its path in /dev, empty where the kernel knows none.
	Device                               string
	Major, Minor                         uint64
	ReadBytes, WriteBytes, Reads, Writes uint64
	SyncBytes, AsyncBytes, DiscardBytes  uint64
	SyncOps, AsyncOps, DiscardOps        uint64
	hasSync                              bool
}

// Pressure is how long tasks have waited for a resource (PSI).
type Pressure struct{ Some, Full PressureLine }

// PressureLine is one line of a PSI file: shares in percent over 10, 60 and 300 seconds, and the total in microseconds.
type PressureLine struct {
	Total                uint64
	Avg10, Avg60, Avg300 float64
}

// Detail says how much of a cgroup is read.
type Detail int

// The details: None reads nothing; Basic is CPU, memory and swap, as /metrics/resource needs them; Plain adds the
// number of processes and the pressures, for /stats/summary; Full is all.
const (
	None Detail = iota
	Basic
	Plain
	Full
)

// Hierarchy reads cgroups below the machine's cgroup mounts.
type Hierarchy struct {
	// mounts are the directories of v1's controllers; nil on v2.
	mounts map[string]string
	// unified is the mount of v2.
	unified string
	// names are the devices' paths by number.
	names sync.Map
}

// unifiedMount is where cgroup v2 is mounted on every system that has it alone.
const unifiedMount = "/sys/fs/cgroup"

// NewHierarchy takes the directories in which cgroup v1's controllers are mounted; none means cgroup v2.
func NewHierarchy(mounts map[string]string) *Hierarchy {
	if len(mounts) == 0 {
		return &Hierarchy{unified: unifiedMount}
	}
	return &Hierarchy{mounts: mounts}
}

// dir is the directory of a cgroup in one controller.
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

// walked is the controller whose directories stand for the cgroups themselves.
func (h *Hierarchy) walked() string { return "memory" }

// children are the names of the cgroups directly below one; none if it is gone.
func (h *Hierarchy) children(cgroup string) []string {
	entries, err := os.ReadDir(h.dir(h.walked(), cgroup))
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

// born is when a cgroup was made.
func (h *Hierarchy) born(cgroup string) time.Time {
	info, err := os.Stat(h.dir(h.walked(), cgroup))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// process is one process of a cgroup itself, 0 if it has none.
func (h *Hierarchy) process(cgroup string) int {
	pid := 0
	_ = withFile(filepath.Join(h.dir(h.walked(), cgroup), "cgroup.procs"), func(text []byte) {
		line, _, _ := bytes.Cut(text, []byte{'\n'})
		if v, ok := parseUint(line); ok && v < 1<<31 {
			pid = int(v)
		}
	})
	return pid
}

// empty says whether no process is left in a cgroup nor in those below it. Where that cannot be read there is.
func (h *Hierarchy) empty(cgroup string) (empty bool) {
	if h.mounts != nil {
		dir := h.dir("pids", cgroup)
		n, ok := readUint(filepath.Join(dir, "pids.current"))
		return dir != "" && ok && n == 0
	}
	_ = eachKeyed(filepath.Join(h.dir("", cgroup), "cgroup.events"), func(key string, v uint64) {
		empty = empty || key == "populated" && v == 0
	})
	return empty
}

// processes counts the processes of a cgroup itself.
func (h *Hierarchy) processes(cgroup string) (n uint64) {
	_ = withFile(filepath.Join(h.dir(h.walked(), cgroup), "cgroup.procs"), func(text []byte) {
		n = uint64(bytes.Count(text, []byte{'\n'}))
	})
	return n
}

// read gives what a cgroup uses. ok is false when it is gone.
func (h *Hierarchy) read(cgroup string, d Detail) (u Usage, ok bool) {
	u.At = time.Now()
	if h.mounts == nil {
		h.readV2(h.dir("", cgroup), d, &u)
	} else {
		h.readV1(cgroup, d, &u)
	}
	for i := range u.IO {
		u.IO[i].Device = h.deviceName(u.IO[i].Major, u.IO[i].Minor)
	}
	return u, u.HasCPU || u.HasMemory
}

// deviceName is the path of a block device in /dev, by its name in sysfs.
func (h *Hierarchy) deviceName(major, minor uint64) string {
	number := strconv.FormatUint(major, 10) + ":" + strconv.FormatUint(minor, 10)
	if name, ok := h.names.Load(number); ok {
		return name.(string)
	}
	name := ""
	if target, err := os.Readlink("/sys/dev/block/" + number); err == nil {
		name = "/dev/" + filepath.Base(target)
	}
	h.names.Store(number, name)
	return name
}

// sizeOf gives the file system that holds a path.
func sizeOf(path string) (s unix.Statfs_t, err error) {
	err = unix.Statfs(path, &s)
	return s, err
}
