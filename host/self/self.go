// Package self looks after the agent's own process: it asks the kernel to kill others first, keeps the heap small and
// within what the agent may use, lets the processors sleep while the agent is at rest, and makes sure that no other
// agent uses the root directory.
//
// It never limits pods. Command nodelet calls it at the start. What it sets ends with the process, and so does the lock
// of the root directory.
package self

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

// ownScore is the file with the oom_score_adj of the process.
const ownScore = "/proc/self/oom_score_adj"

// setOOMScoreAdj sets the oom_score_adj of the process with that file, -1000 to 1000. The kernel kills processes with a
// lower one later. Lowering it needs CAP_SYS_RESOURCE; an error without it wraps unix.EACCES or unix.EPERM.
func setOOMScoreAdj(file string, score int) error {
	text, err := os.ReadFile(file)
	if err == nil && strings.TrimSpace(string(text)) == strconv.Itoa(score) {
		return nil
	}
	err = os.WriteFile(file, []byte(strconv.Itoa(score)), 0)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("set OOM score: %w: give the agent CAP_SYS_RESOURCE, or set OOMScoreAdjust=%d in its systemd unit",
			err, score)
	}
	return err
}

// memoryLimit returns how many bytes of memory the cgroup of the process and those above it allow, 0 for no limit.
func memoryLimit() (int64, error) {
	groups, err := cgroups.ParseCgroupFile("/proc/self/cgroup")
	if err != nil {
		return 0, fmt.Errorf("find the agent's cgroup: %w", err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return 0, fmt.Errorf("find cgroup mounts: %w", err)
	}
	least := int64(0)
	for _, m := range mounts {
		path, ok := groups[""]
		if m.FSType == "cgroup" {
			if !strings.Contains(","+m.VFSOptions+",", ",memory,") {
				continue
			}
			path, ok = groups["memory"]
		}
		if !ok {
			continue
		}
		limit, err := limitBelow(m.Mountpoint, m.Root, path)
		if err != nil {
			return 0, err
		}
		least = smaller(least, limit)
	}
	return least, nil
}

// limitFiles hold limits: memory.high and memory.max of cgroup v2, memory.limit_in_bytes of v1.
var limitFiles = []string{"memory.high", "memory.max", "memory.limit_in_bytes"}

// limitBelow returns the smallest limit of a cgroup and of those above it that are visible at the mount point; root is
// the cgroup that is mounted there.
func limitBelow(mount, root, path string) (least int64, err error) {
	path, err = filepath.Rel(root, path)
	if err != nil || path == ".." || strings.HasPrefix(path, "../") {
		path = "." // the cgroup is not visible; the mounted one is above it or the same
	}
	for dir := path; ; dir = filepath.Dir(dir) {
		for _, file := range limitFiles {
			limit, err := readLimit(filepath.Join(mount, dir, file))
			if err != nil {
				return 0, err
			}
			least = smaller(least, limit)
		}
		if dir == "." {
			return least, nil
		}
	}
}

// unlimited is no limit in cgroup v1: it shows the largest number of whole pages, which is more than this.
const unlimited = 1 << 62

// readLimit reads a limit; 0 if there is none.
func readLimit(file string) (int64, error) {
	text, err := os.ReadFile(file)
	value := strings.TrimSpace(string(text))
	if errors.Is(err, fs.ErrNotExist) || err == nil && value == "max" {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read memory limit: %w", err)
	}
	limit, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read memory limit %s: %w", file, err)
	}
	if limit >= unlimited {
		return 0, nil
	}
	return limit, nil
}

// smaller returns the smaller of two limits, of which 0 is none.
func smaller(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// openFiles is the number of files that the agent can open before the kernel has to grow the file table: some for each
// followed log and each stream.
const openFiles = 1024

// GrowFileTable makes the kernel grow the file table to openFiles. While it grows, every open() waits for an RCU grace
// period; in a burst of logs, streams or pods many threads would wait, and the process would keep them for ever. It
// takes some milliseconds; nothing has to wait for it. If the limit of open files is lower, it does nothing.
func GrowFileTable() {
	if fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, openFiles-1); err == nil {
		_ = unix.Close(fd)
	}
}
