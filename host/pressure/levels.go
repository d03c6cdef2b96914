package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/machine"
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

// Memory returns the available memory: free memory and inactive files of the page cache, which the kernel can reclaim
// at once. The kubelet counts it in the same way.
func (p Proc) Memory() (Level, error) {
	text, err := os.ReadFile(p.path("meminfo"))
	if err != nil {
		return Level{}, fmt.Errorf("read available memory: %w", err)
	}
	const missing = int64(-1)
	total, free := missing, missing
	inactive := missing
	err = machine.ParseMeminfo(text, map[string]*int64{"MemTotal": &total, "MemFree": &free, "Inactive(file)": &inactive})
	if err == nil && min(total, free, inactive) == missing {
		err = errors.New("it has no line MemTotal, MemFree or Inactive(file)")
	}
	if err != nil {
		return Level{}, fmt.Errorf("read %s: %w", p.path("meminfo"), err)
	}
	return Level{Available: min(total, free+inactive), Capacity: total}, nil
}

// Processes returns how many processes and threads can still be created.
func (p Proc) Processes() (Level, error) {
	running, limit, err := machine.Tasks(p.path())
	if err != nil {
		return Level{}, err
	}
	return Level{Available: max(0, limit-running), Capacity: limit}, nil
}

// Disk returns the bytes, the inodes and the device number of the file system that holds path.
func Disk(path string) (bytes, inodes Level, device uint64, err error) {
	fs, err := machine.ReadFileSystem(path)
	if err != nil {
		return Level{}, Level{}, 0, err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Level{}, Level{}, 0, fmt.Errorf("read the device of %s: %w", path, err)
	}
	return Level{Available: int64(fs.Available), Capacity: int64(fs.Size)},
		Level{Available: int64(fs.InodesFree), Capacity: int64(fs.Inodes)}, uint64(st.Dev), nil
}

func readNumber(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}

// Cgroup is the directory of a cgroup, in the hierarchies of the memory and the pids controller; the same on cgroup v2.
type Cgroup struct{ Memory, Pids string }

// Use returns the usage of a cgroup: memory in bytes without inactive files of the page cache, and the number of
// processes and threads.
func (c Cgroup) Use() (memory, processes int64, err error) {
	used, inactive := "memory.current", "inactive_file"
	if _, err := os.Stat(filepath.Join(c.Memory, used)); err != nil {
		used, inactive = "memory.usage_in_bytes", "total_inactive_file"
	}
	memory, err = readNumber(filepath.Join(c.Memory, used))
	if err == nil {
		var stat []byte
		stat, err = os.ReadFile(filepath.Join(c.Memory, "memory.stat"))
		memory = max(0, memory-field(stat, inactive))
	}
	var errPids error
	if processes, errPids = readNumber(filepath.Join(c.Pids, "pids.current")); errPids != nil {
		err = errors.Join(err, errPids)
	}
	return memory, processes, err
}

// Limit returns the memory limit of the cgroup; false if it has none.
func (c Cgroup) Limit() (int64, bool) {
	for _, file := range []string{"memory.max", "memory.limit_in_bytes"} {
		n, err := readNumber(filepath.Join(c.Memory, file))
		if err == nil {
			return n, n < 1<<62 // without a limit v1 has a number near the largest int64
		}
	}
	return 0, false
}

// field returns the value of a name in a file of names and values; 0 if the file does not have it.
func field(stat []byte, name string) int64 {
	for line := range strings.Lines(string(stat)) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == name {
			n, _ := strconv.ParseInt(value, 10, 64)
			return n
		}
	}
	return 0
}
