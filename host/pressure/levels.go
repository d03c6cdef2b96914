package pressure

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/host/mounts"
)

// Level is the available part and the total of a resource: bytes, inodes or processes.
type Level struct{ Available, Capacity int64 }

// Proc is the directory of procfs. Empty means /proc.
type Proc string

func (p Proc) path(parts ...string) string {
	if p == "" {
		p = "/proc"
	}
	return filepath.Join(append([]string{string(p)}, parts...)...)
}

// Memory returns the level of the memory that is not set aside as huge pages. Used are the memory of processes and the
// page cache without its inactive files, but not the kernel's own memory, such as its cache of directory entries. The
// kubelet counts the same as used, with cgroup v1 and v2, but huge pages as available: with many of them the memory
// never falls below a threshold.
func (p Proc) Memory() (Level, error) {
	text, err := os.ReadFile(p.path("meminfo"))
	if err != nil {
		return Level{}, fmt.Errorf("read available memory: %w", err)
	}
	const missing = int64(-1)
	var (
		total, processes, buffers    = missing, missing, missing
		cached, swapCached, inactive = missing, int64(0), missing
		hugePages                    int64
	)
	err = machine.ParseMeminfo(text, map[string]*int64{
		"MemTotal":       &total,
		"AnonPages":      &processes,
		"Buffers":        &buffers,
		"Cached":         &cached,
		"SwapCached":     &swapCached,
		"Inactive(file)": &inactive,
		"Hugetlb":        &hugePages,
	})
	if err == nil && min(total, processes, buffers, cached, inactive) == missing {
		err = errors.New("it has no line MemTotal, AnonPages, Buffers, Cached or Inactive(file)")
	}
	if err != nil {
		return Level{}, fmt.Errorf("read %s: %w", p.path("meminfo"), err)
	}
	used := processes + max(0, buffers+cached+swapCached-inactive)
	capacity := max(0, total-hugePages)
	return Level{Available: min(capacity, max(0, capacity-used)), Capacity: capacity}, nil
}

// Processes returns how many processes and threads can still be created.
func (p Proc) Processes() (Level, error) {
	running, limit, err := machine.Tasks(p.path())
	if err != nil {
		return Level{}, err
	}
	return Level{Available: max(0, limit-running), Capacity: limit}, nil
}

// Disk returns the bytes, the inodes and the name of the file system that holds path.
func Disk(path string) (bytes, inodes Level, name string, err error) {
	fs, err := machine.ReadFileSystem(path)
	if err != nil {
		return Level{}, Level{}, "", err
	}
	if name, err = mounts.FileSystem(path); err != nil {
		return Level{}, Level{}, "", fmt.Errorf("tell which file system holds %s: %w", path, err)
	}
	return Level{Available: int64(fs.Available), Capacity: int64(fs.Size)},
		Level{Available: int64(fs.InodesFree), Capacity: int64(fs.Inodes)}, name, nil
}
