package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// cgroupMounts lists where cgroup hierarchies are mounted: one place on cgroup v2, many on v1.
func cgroupMounts() ([]*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("list cgroup mounts: %w", err)
	}
	return mounts, nil
}

// MakeCgroup makes a cgroup in every hierarchy, ready for agents to make their own below it, and gives its directories.
func MakeCgroup(path string) (dirs []string, err error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		dir := m.Mountpoint
		for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
			if m.FSType == "cgroup2" {
				if err := delegate(dir); err != nil {
					return nil, err
				}
			}
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, fmt.Errorf("make cgroup: %w", err)
			}
			if err := inheritCPUSet(dir); err != nil {
				return nil, err
			}
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// delegate lets the children of a v2 cgroup have its controllers.
func delegate(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(b)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("hand controller %s down from cgroup %s: %w", c, dir, err)
		}
	}
	return nil
}

// inheritCPUSet gives a new v1 cpuset cgroup its parent's CPUs and memory nodes: it starts with none, and takes no
// process without them. Other hierarchies do not have the files.
func inheritCPUSet(dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o644)
		}
		if err != nil {
			return fmt.Errorf("fill cpuset cgroup: %w", err)
		}
	}
	return nil
}

// cgroupDirs lists the cgroup and all below it in every hierarchy, each after its parent.
func cgroupDirs(path string) ([]string, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, m := range mounts {
		err := filepath.WalkDir(filepath.Join(m.Mountpoint, path), func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil // a cgroup may go while one looks at it
		})
		if err != nil {
			return nil, err
		}
	}
	return dirs, nil
}

// RemoveCgroup removes a cgroup and all below it from every hierarchy. Processes which were just killed keep theirs busy for a
// moment, at most for as long as patience.
func RemoveCgroup(path string, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		dirs, err := cgroupDirs(path)
		if err != nil {
			return err
		}
		for i := len(dirs) - 1; i >= 0; i-- {
			if e := unix.Rmdir(dirs[i]); e != nil && e != unix.ENOENT {
				err = fmt.Errorf("remove cgroup %s: %w", dirs[i], e)
			}
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
