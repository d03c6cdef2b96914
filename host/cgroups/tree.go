// Package cgroups keeps the cgroups that pods live in: kubepods with its classes burstable and besteffort, and one
// cgroup a pod, named as the kubelet names them on cgroup v1 and v2, with the cgroupfs and the systemd driver.
//
// It owns everything below its kubepods cgroup down to the pods' own; the cgroups of containers belong to the
// runtime. It never decides a limit (the agent says them), never moves a process, and never touches a cgroup outside
// kubepods, save those that Enforce is told to limit. The agent calls it. A crash leaves cgroups behind, which Pods
// lists at the next start; every call can be repeated.
package cgroups

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/cgroups/systemd"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/host/cgroups/names"
)

// atOnce is how many calls may change the hierarchy at a time. The kernel has one lock for it, so more of them would
// only wait there, each with a thread that the process never loses again.
const atOnce = 2

const unifiedMount = "/sys/fs/cgroup"

// The drivers that KubeletConfiguration's cgroupDriver can name.
const (
	DriverCgroupfs = "cgroupfs"
	DriverSystemd  = "systemd"
)

// Config says where the tree is and who makes it.
type Config struct {
	// Root is the cgroup that kubepods is made in, KubeletConfiguration's cgroupRoot: "" or "/" for the top of the
	// hierarchy, "/kubelet" for one below it. It is made where it does not exist.
	Root string
	// Driver is cgroupfs (directories are made here) or systemd (slices are asked of systemd over D-Bus). It must be what
	// the runtime uses too: see Use.
	Driver string
}

// Tree is the pods' part of the cgroup hierarchy. Safe for concurrent use for different pods.
type Tree struct {
	pods      names.Name        // kubepods
	mounts    map[string]string // v1: where each controller is mounted
	systemd   atomic.Bool       // the driver in use
	v2        bool
	hugetlb   bool
	pageSizes []int64

	changing chan struct{} // has a place for each call that changes the hierarchy: see atOnce

	mu              sync.Mutex
	burstableShares uint64 // as last written
}

// New looks at the machine and makes nothing yet. Call Use before anything is made.
func New(cfg Config) (*Tree, error) {
	if err := known(cfg.Driver); err != nil {
		return nil, err
	}
	t := newTree(cfg, cgroups.IsCgroup2UnifiedMode())
	if err := t.pods.Check(); err != nil {
		return nil, fmt.Errorf("cgroupRoot %q: %w", cfg.Root, err)
	}
	if err := t.look(); err != nil {
		return nil, fmt.Errorf("find the cgroup controllers: %w", err)
	}
	return t, nil
}

func newTree(cfg Config, v2 bool) *Tree {
	t := &Tree{pods: names.Pods(cfg.Root), v2: v2, changing: make(chan struct{}, atOnce)}
	t.systemd.Store(cfg.Driver == DriverSystemd)
	return t
}

func known(driver string) error {
	if driver != DriverCgroupfs && driver != DriverSystemd {
		return fmt.Errorf("cgroupDriver %q is unknown: use %s or %s, whichever the runtime uses", driver, DriverCgroupfs, DriverSystemd)
	}
	return nil
}

// Use settles the driver: the one that the runtime names (CRI RuntimeConfig), or that of the configuration where the
// runtime names none. It is called once, before anything is made.
func (t *Tree) Use(driver string) error {
	if err := known(driver); err != nil {
		return err
	}
	if driver == DriverSystemd && !systemd.IsRunningSystemd() {
		return fmt.Errorf("cgroupDriver %q: systemd is not running on this machine; set cgroupDriver: %s here and in the "+
			"runtime's configuration", driver, DriverCgroupfs)
	}
	t.systemd.Store(driver == DriverSystemd)
	return nil
}

// look finds the mounted controllers and the sizes of huge pages, once: they don't change while the machine runs.
func (t *Tree) look() error {
	t.pageSizes = parsePageSizes(cgroups.HugePageSizes())
	if t.v2 {
		raw, err := os.ReadFile(filepath.Join(unifiedMount, "cgroup.controllers"))
		t.hugetlb = slices.Contains(strings.Fields(string(raw)), "hugetlb")
		return err
	}
	m, err := fs.NewManager(&cgroups.Cgroup{Path: "/", Resources: &cgroups.Resources{SkipDevices: true}}, nil)
	if err != nil {
		return err
	}
	t.mounts = m.GetPaths()
	_, t.hugetlb = t.mounts["hugetlb"]
	return nil
}

// Version returns 1 or 2: which cgroup hierarchy the machine uses.
func (t *Tree) Version() int {
	if t.v2 {
		return 2
	}
	return 1
}

// Ensure makes kubepods with the given limits (what of the node pods may use: shares, memory, pids, huge pages) and
// the two classes below it: besteffort with the least shares, burstable with those last set by SetBurstableCPU, both
// without a limit of huge pages. Before the first SetBurstableCPU of this life a burstable class that exists keeps
// its shares: its pods must not notice that the agent starts. It may be called again when the limits change. Lowering
// memory below what is in use fails on cgroup v1; the caller tries again when evictions have freed some.
func (t *Tree) Ensure(limits Resources) error {
	if err := t.create(t.pods, limits); err != nil {
		return fmt.Errorf("set up cgroup %s: %w", t.spell(t.pods), err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	burstable := t.burstableShares
	if burstable == 0 && !t.exists(t.pods.Class(corev1.PodQOSBurstable)) {
		burstable = minShares
	}
	for _, class := range []struct {
		qos    corev1.PodQOSClass
		shares uint64 // 0: as they are
	}{{corev1.PodQOSBurstable, burstable}, {corev1.PodQOSBestEffort, minShares}} {
		n := t.pods.Class(class.qos)
		if err := t.create(n, Resources{CPUShares: class.shares, HugePages: t.unlimitedPages()}); err != nil {
			return fmt.Errorf("set up cgroup %s: %w", t.spell(n), err)
		}
	}
	return nil
}

// Limit changes limits of kubepods; zero fields stay as they are. Like Ensure it may fail for memory that is in use.
func (t *Tree) Limit(limits Resources) error {
	if err := t.set(t.pods, limits); err != nil {
		return fmt.Errorf("limit cgroup %s: %w", t.spell(t.pods), err)
	}
	return nil
}

// BoundsSwap tells whether the kernel can bound the swap of a cgroup.
func (t *Tree) BoundsSwap() bool {
	if !t.v2 {
		_, err := os.Stat(filepath.Join(t.mounts["memory"], "memory.memsw.limit_in_bytes"))
		return err == nil
	}
	// The top of the hierarchy has no such file; every cgroup below has, where the controller is on.
	found, _ := filepath.Glob(filepath.Join(unifiedMount, "*", "memory.swap.max")) // the pattern is a good one
	return len(found) > 0
}

// exists: n is there in a controller that pods' limits are written to.
func (t *Tree) exists(n names.Name) bool {
	for controller, dir := range t.dirs(n) {
		if _, err := os.Stat(dir); err == nil && t.kept(controller) {
			return true
		}
	}
	return false
}

// SetBurstableCPU gives the burstable class the shares for the sum of its pods' CPU requests, in thousandths. It writes
// only when that changes the shares.
func (t *Tree) SetBurstableCPU(milliCPU int64) error {
	shares := Shares(milliCPU)
	t.mu.Lock()
	defer t.mu.Unlock()
	if shares == t.burstableShares {
		return nil
	}
	n := t.pods.Class(corev1.PodQOSBurstable)
	if err := t.set(n, Resources{CPUShares: shares}); err != nil {
		return fmt.Errorf("set the CPU shares of cgroup %s: %w", t.spell(n), err)
	}
	t.burstableShares = shares
	return nil
}

// Enforce limits a cgroup outside the tree that somebody else keeps: KubeletConfiguration's kubeReservedCgroup or
// systemReservedCgroup. It must exist.
func (t *Tree) Enforce(cgroup string, limits Resources) error {
	n := names.Parse(cgroup)
	for controller, dir := range t.dirs(n) {
		if _, err := os.Stat(dir); err != nil && t.kept(controller) {
			return fmt.Errorf("limit cgroup %s: %w; create it before the agent starts, or take it out of enforceNodeAllocatable",
				cgroup, err)
		}
	}
	if err := t.set(n, limits); err != nil {
		return fmt.Errorf("limit cgroup %s: %w", cgroup, err)
	}
	return nil
}

// kept tells the controllers that limits are written to. "" is cgroup v2's only path; on a machine with both
// hierarchies it is the one that has no controller.
func (t *Tree) kept(controller string) bool {
	switch controller {
	case "":
		return t.v2
	case "cpu", "memory", "pids":
		return true
	}
	return false
}

// spell returns the path of n as the driver in use spells it.
func (t *Tree) spell(n names.Name) string { return n.Spell(t.systemd.Load()) }

// dirs returns the directories of n, one a mounted controller on v1, one with the key "" on v2.
func (t *Tree) dirs(n names.Name) map[string]string {
	if t.v2 {
		return map[string]string{"": filepath.Join(unifiedMount, t.spell(n))}
	}
	dirs := make(map[string]string, len(t.mounts))
	for controller, mount := range t.mounts {
		dirs[controller] = filepath.Join(mount, t.spell(n))
	}
	return dirs
}

// manager is the library's handle on n.
func (t *Tree) manager(n names.Name, r *cgroups.Resources) (cgroups.Manager, error) {
	c := &cgroups.Cgroup{Resources: r, Systemd: t.systemd.Load()}
	dirs := t.dirs(n)
	switch {
	case t.systemd.Load():
		c.Parent, c.Name = n.Unit()
		if t.v2 {
			return systemd.NewUnifiedManager(c, dirs[""])
		}
		return systemd.NewLegacyManager(c, dirs)
	case t.v2:
		return fs2.NewManager(c, dirs[""])
	}
	c.Path = n.Spell(false)
	return fs.NewManager(c, dirs)
}

// create makes n, where it is not there, in every controller that is mounted, and sets r.
func (t *Tree) create(n names.Name, r Resources) error {
	defer t.change()()
	spec := t.spec(r)
	m, err := t.manager(n, spec)
	if err != nil {
		return err
	}
	if err := m.Apply(-1); err != nil { // -1: no process
		return err
	}
	return m.Set(spec)
}

// change waits for its turn to change the hierarchy, and returns what ends it.
func (t *Tree) change() (done func()) {
	t.changing <- struct{}{}
	return func() { <-t.changing }
}

func (t *Tree) set(n names.Name, r Resources) error {
	spec := t.spec(r)
	m, err := t.manager(n, spec)
	if err != nil {
		return err
	}
	return m.Set(spec)
}
