package testbed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
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

// DriverEnv is the environment variable with the default of Options.CgroupDriver.
const DriverEnv = "NODELET_TESTBED_CGROUP_DRIVER"

// cgroupPath returns the path of a cgroup as the driver creates it. The name of a systemd slice contains the names of
// its parents, and "_" for each dash within a name.
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

// makeNodeCgroup creates the cgroup of the agent's cgroupRoot.
func (n *Node) makeNodeCgroup(ctx context.Context) error {
	if n.tb.opts.CgroupDriver == DriverSystemd {
		slice := filepath.Base(n.cgroup())
		if _, err := run(ctx, "systemctl", "start", slice); err != nil {
			return err
		}
		// The kubelet wants the controllers cpu and cpuset in its cgroup; systemd adds them where a property needs them.
		cpus := fmt.Sprintf("AllowedCPUs=0-%d", runtime.NumCPU()-1)
		_, err := run(ctx, "systemctl", "set-property", "--runtime", slice, "CPUWeight=100", cpus)
		return err
	}
	_, err := MakeCgroup(n.CgroupRoot)
	return err
}

// CgroupDriver returns the cgroup driver of the node's agent and runtime.
func (n *Node) CgroupDriver() string { return n.tb.opts.CgroupDriver }

// cgroup returns the path of a cgroup below the node's cgroup.
func (n *Node) cgroup(names ...string) string {
	root := strings.Split(strings.Trim(n.CgroupRoot, "/"), "/")
	return cgroupPath(n.tb.opts.CgroupDriver, append(root, names...)...)
}

// PodCgroup returns the path of a pod's cgroup relative to each cgroup mount.
func (n *Node) PodCgroup(class corev1.PodQOSClass, uid types.UID) string {
	names := []string{"kubepods"}
	if class != corev1.PodQOSGuaranteed {
		names = append(names, strings.ToLower(string(class)))
	}
	return n.cgroup(append(names, "pod"+string(uid))...)
}

// ContainerCgroup returns the path of a container's cgroup relative to each cgroup mount. id is the container's ID in
// the runtime.
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

// stopSlice stops the testbed's slice with all slices below it, if the systemd driver has created one.
func (n names) stopSlice(ctx context.Context) error {
	if dirs, err := cgroupDirs(n.slice()); err != nil || len(dirs) == 0 {
		return err
	}
	if _, err := run(ctx, "systemctl", "stop", filepath.Base(n.slice())); err != nil {
		return err
	}
	// What makeNodeCgroup has set.
	nodes := strings.TrimSuffix(filepath.Base(n.slice()), ".slice") + "-*.slice.d"
	properties, err := filepath.Glob(filepath.Join("/run/systemd/system.control", nodes))
	for _, dir := range properties {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// cgroupMounts lists the mounts of cgroup hierarchies: one with cgroup v2, many with v1.
func cgroupMounts() ([]*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("list cgroup mounts: %w", err)
	}
	return mounts, nil
}

// MakeCgroup creates a cgroup in every hierarchy, so that agents can create theirs below it, and returns its
// directories.
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
				return nil, fmt.Errorf("create cgroup: %w", err)
			}
			if err := inheritCPUSet(dir); err != nil {
				return nil, err
			}
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// delegate enables all controllers of a v2 cgroup for its children.
func delegate(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(b)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("enable controller %s for the children of cgroup %s: %w", c, dir, err)
		}
	}
	return nil
}

// inheritCPUSet copies the parent's CPUs and memory nodes to a new v1 cpuset cgroup. It starts without any, and then
// the kernel lets no process enter it. Other hierarchies do not have these files.
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
			return fmt.Errorf("initialize cpuset cgroup: %w", err)
		}
	}
	return nil
}

// cgroupDirs lists the directories of the cgroup and all below it in every hierarchy, each after its parent.
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
			return nil // a cgroup may be removed during the walk
		})
		if err != nil {
			return nil, err
		}
	}
	return dirs, nil
}

// RemoveCgroup removes a cgroup and all below it from every hierarchy. A cgroup stays busy for a moment after its
// processes were killed; RemoveCgroup retries until timeout.
func RemoveCgroup(path string, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
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
