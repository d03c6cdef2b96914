package testbed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The cgroup drivers.
const (
	DriverCgroupfs = "cgroupfs"
	DriverSystemd  = "systemd"
)

// DriverEnv names the cgroup driver of testbeds whose options name none.
const DriverEnv = "NODELET_TESTBED_CGROUP_DRIVER"

// cgroupPath spells the path of a cgroup as a driver does. A systemd slice carries the names of those above it, and "_"
// for each dash within a name.
func cgroupPath(driver string, names ...string) string {
	if driver != DriverSystemd {
		return "/" + strings.Join(names, "/")
	}
	path, full := "", ""
	for _, name := range names {
		full += strings.ReplaceAll(name, "-", "_")
		path += "/" + full + ".slice"
		full += "-"
	}
	return path
}

// makeNodeCgroup makes the cgroup that the agent's cgroupRoot names.
func (n *Node) makeNodeCgroup(ctx context.Context) error {
	if n.tb.opts.CgroupDriver == DriverSystemd {
		_, err := run(ctx, "systemctl", "start", filepath.Base(n.cgroup()))
		return err
	}
	_, err := MakeCgroup(n.CgroupRoot)
	return err
}

// cgroup is the path of a cgroup below the node's.
func (n *Node) cgroup(names ...string) string {
	root := strings.Split(strings.Trim(n.CgroupRoot, "/"), "/")
	return cgroupPath(n.tb.opts.CgroupDriver, append(root, names...)...)
}

// PodCgroup is the path of a pod's cgroup below each cgroup mount.
func (n *Node) PodCgroup(class corev1.PodQOSClass, uid types.UID) string {
	names := []string{"kubepods"}
	if class != corev1.PodQOSGuaranteed {
		names = append(names, strings.ToLower(string(class)))
	}
	return n.cgroup(append(names, "pod"+string(uid))...)
}

// ContainerCgroup is the path of a container's cgroup, by its ID in the runtime.
func (n *Node) ContainerCgroup(class corev1.PodQOSClass, uid types.UID, id string) string {
	name, prefix := id, ""
	if n.tb.opts.crio() {
		prefix = "crio-"
	}
	if n.tb.opts.CgroupDriver == DriverSystemd {
		prefix, name = cmp.Or(prefix, "cri-containerd-"), id+".scope"
	}
	return filepath.Join(n.PodCgroup(class, uid), prefix+name)
}

// stopSlice ends the testbed's slice with all slices below it, where the systemd driver made one.
func (n names) stopSlice(ctx context.Context) error {
	if dirs, err := cgroupDirs(n.slice()); err != nil || len(dirs) == 0 {
		return err
	}
	_, err := run(ctx, "systemctl", "stop", filepath.Base(n.slice()))
	return err
}

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
