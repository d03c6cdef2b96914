// Package cgroups manages the cgroups of pods: kubepods, its QoS classes burstable and besteffort, and one cgroup per
// pod. It names them as the kubelet does, on cgroup v1 and v2, with the cgroupfs and the systemd driver.
//
// It owns the kubepods cgroup, the classes and the cgroups of pods; the cgroups of containers belong to the runtime. It
// never decides a limit (the agent does), never moves a process, and never changes a cgroup outside kubepods, except
// those that are passed to Enforce. The agent calls it. A crash leaves cgroups behind, which Pods lists at the next
// start; every call can be repeated.
package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/cgroups/systemd"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/host/cgroups/cpu"
	"github.com/nodelet/nodelet/host/cgroups/names"
)

// atOnce is how many calls may change the hierarchy at the same time. The kernel has one lock for it, so more calls
// would only wait in the kernel, each with an operating system thread that the Go runtime never releases.
const atOnce = 2

const unifiedMount = "/sys/fs/cgroup"

// The drivers that KubeletConfiguration's cgroupDriver can name.
const (
	DriverCgroupfs = "cgroupfs"
	DriverSystemd  = "systemd"
)

// Config says where the tree is and which driver creates it.
type Config struct {
	// Root is the parent cgroup of kubepods, KubeletConfiguration's cgroupRoot: "" or "/" for the top of the
	// hierarchy, "/kubelet" for a cgroup below it. It is created if it does not exist.
	Root string
	// Driver is cgroupfs (the tree creates directories) or systemd (the tree asks systemd for slices over D-Bus). The
	// runtime must use the same one: see Use.
	Driver string
	// Protect: the agent protects the memory of pods on cgroup v2 (see Protect). Otherwise Ensure removes what an earlier
	// agent has protected.
	Protect bool
	// RefuseV1: it is an error that the machine has cgroup v1 (failCgroupV1).
	RefuseV1 bool
}

// controllersV1 are the controllers of cgroup v1 without which the agent, like the kubelet, does not start.
var controllersV1 = []string{"cpu", "cpuacct", "cpuset", "memory"}

// errV1 is the error on a machine with cgroup v1 that the configuration refuses.
var errV1 = errors.New("the machine has cgroup v1, and failCgroupV1 is true: " +
	"boot it with cgroup v2, or set failCgroupV1: false")

// Tree is the pods' part of the cgroup hierarchy. Safe for concurrent use for different pods.
type Tree struct {
	pods    names.Name        // kubepods
	mounts  map[string]string // v1: where each controller is mounted
	unified string            // where cgroup v2 is mounted
	systemd atomic.Bool       // the driver in use
	v2      bool
	protect bool // Config.Protect
	// hugetlb and countsPids: the machine has the controllers hugetlb and pids.
	hugetlb, countsPids bool
	pageSizes           []int64

	changing chan struct{} // semaphore of the calls that change the hierarchy: see atOnce
}

// New finds the cgroup controllers of the machine. It creates no cgroup. Call Use before any call that creates one.
func New(cfg Config) (*Tree, error) {
	if err := checkDriver(cfg.Driver); err != nil {
		return nil, err
	}
	t := newTree(cfg, cgroups.IsCgroup2UnifiedMode())
	if err := t.pods.Check(); err != nil {
		return nil, fmt.Errorf("cgroupRoot %q: %w", cfg.Root, err)
	}
	if err := t.detect(); err != nil {
		return nil, fmt.Errorf("find the cgroup controllers: %w", err)
	}
	if cfg.RefuseV1 && !t.v2 {
		return nil, errV1
	}
	return t, nil
}

func newTree(cfg Config, v2 bool) *Tree {
	t := &Tree{
		pods:     names.Pods(cfg.Root),
		unified:  unifiedMount,
		v2:       v2,
		protect:  cfg.Protect,
		changing: make(chan struct{}, atOnce),
	}
	t.systemd.Store(cfg.Driver == DriverSystemd)
	return t
}

func checkDriver(driver string) error {
	if driver != DriverCgroupfs && driver != DriverSystemd {
		return fmt.Errorf("cgroupDriver %q is unknown: use %s or %s, whichever the runtime uses",
			driver, DriverCgroupfs, DriverSystemd)
	}
	return nil
}

// Use sets the driver: the one that the runtime reports (CRI RuntimeConfig), or the configured one if the runtime
// reports none. Call it once, before any call that creates a cgroup.
func (t *Tree) Use(driver string) error {
	if err := checkDriver(driver); err != nil {
		return err
	}
	if driver == DriverSystemd && !systemd.IsRunningSystemd() {
		return fmt.Errorf("cgroupDriver %q: systemd is not running on this machine; set cgroupDriver: %s in this "+
			"configuration and in that of the runtime", driver, DriverCgroupfs)
	}
	t.systemd.Store(driver == DriverSystemd)
	return nil
}

// Driver returns the driver in use.
func (t *Tree) Driver() string {
	if t.systemd.Load() {
		return DriverSystemd
	}
	return DriverCgroupfs
}

// detect finds the mounted controllers and the sizes of huge pages. New calls it once: they do not change while the
// machine runs.
func (t *Tree) detect() error {
	t.pageSizes = parsePageSizes(cgroups.HugePageSizes())
	if t.v2 {
		raw, err := os.ReadFile(filepath.Join(t.unified, "cgroup.controllers"))
		controllers := strings.Fields(string(raw))
		t.hugetlb, t.countsPids = slices.Contains(controllers, "hugetlb"), slices.Contains(controllers, "pids")
		return err
	}
	m, err := fs.NewManager(&cgroups.Cgroup{Path: "/", Resources: &cgroups.Resources{SkipDevices: true}}, nil)
	if err != nil {
		return err
	}
	t.mounts = m.GetPaths()
	_, t.hugetlb = t.mounts["hugetlb"]
	_, t.countsPids = t.mounts["pids"]
	return checkMounts(t.mounts)
}

// checkMounts returns an error if a needed controller of cgroup v1 is not mounted.
func checkMounts(mounts map[string]string) error {
	missing := slices.DeleteFunc(slices.Clone(controllersV1), func(c string) bool { return mounts[c] != "" })
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("cgroup v1 lacks %s: boot the machine with cgroup v2, or without cgroup_disable=",
		strings.Join(missing, ", "))
}

// Version returns 1 or 2: which cgroup hierarchy the machine uses.
func (t *Tree) Version() int {
	if t.v2 {
		return 2
	}
	return 1
}

// Ensure creates kubepods and the two classes below it with the fewest shares, both without a limit for huge pages. An
// existing kubepods keeps its limits, which Limit sets, and an existing burstable class its shares: a restart of the
// agent must not disturb its pods. Without Config.Protect no memory is protected.
func (t *Tree) Ensure() error {
	protected, unprotected := t.unprotected()
	if err := t.create(t.pods, Resources{Unified: protected}); err != nil {
		return fmt.Errorf("set up cgroup %s: %w", t.spell(t.pods), err)
	}
	burstable := uint64(cpu.MinShares)
	if t.exists(t.pods.Class(corev1.PodQOSBurstable)) {
		burstable = 0
	}
	for _, class := range []struct {
		qos     corev1.PodQOSClass
		shares  uint64 // 0: unchanged
		unified map[string]string
	}{{corev1.PodQOSBurstable, burstable, unprotected}, {corev1.PodQOSBestEffort, cpu.MinShares, nil}} {
		n := t.pods.Class(class.qos)
		r := Resources{CPUShares: class.shares, HugePages: t.unlimitedPages(), Unified: class.unified}
		if err := t.create(n, r); err != nil {
			return fmt.Errorf("set up cgroup %s: %w", t.spell(n), err)
		}
	}
	return nil
}

// Limit changes limits of kubepods (the part of the node that pods may use: shares, memory, pids, huge pages); zero
// fields change nothing. Lowering memory below the current usage fails on cgroup v1; the caller retries when evictions
// have freed memory.
func (t *Tree) Limit(limits Resources) error {
	if err := t.set(t.pods, limits); err != nil {
		return fmt.Errorf("limit cgroup %s: %w", t.spell(t.pods), err)
	}
	return nil
}

// Identity tells kubepods from another one that is made after its removal. It is empty if there is none.
func (t *Tree) Identity() string {
	var ids []string
	for controller, dir := range t.dirs(t.pods) {
		var st unix.Stat_t
		if t.kept(controller) && unix.Stat(dir, &st) == nil {
			ids = append(ids, fmt.Sprint(controller, st.Ino))
		}
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

// BoundsSwap reports whether the kernel can limit the swap of a cgroup.
func (t *Tree) BoundsSwap() bool {
	if !t.v2 {
		_, err := os.Stat(filepath.Join(t.mounts["memory"], "memory.memsw.limit_in_bytes"))
		return err == nil
	}
	// The root cgroup has no such file; every cgroup below it has one if the controller is enabled.
	found, _ := filepath.Glob(filepath.Join(t.unified, "*", "memory.swap.max")) // fails only for a malformed pattern
	return len(found) > 0
}

// exists reports whether n exists in a controller that limits are written to.
func (t *Tree) exists(n names.Name) bool {
	for controller, dir := range t.dirs(n) {
		if _, err := os.Stat(dir); err == nil && t.kept(controller) {
			return true
		}
	}
	return false
}

// SetShares sets the shares of the classes: the fewest for besteffort, and for burstable those of the sum of its pods'
// CPU requests, in thousandths. It writes only what the kernel has otherwise.
func (t *Tree) SetShares(burstable int64) error {
	return errors.Join(
		t.setShares(t.pods.Class(corev1.PodQOSBurstable), uint64(cpu.Shares(burstable))),
		t.setShares(t.pods.Class(corev1.PodQOSBestEffort), cpu.MinShares),
	)
}

func (t *Tree) setShares(n names.Name, shares uint64) error {
	want := Resources{CPUShares: shares}
	has, err := t.size(n, want)
	if err == nil && has.CPUShares != shares {
		err = t.set(n, want)
	}
	if err != nil {
		return fmt.Errorf("set the CPU shares of cgroup %s: %w", t.spell(n), err)
	}
	return nil
}

// Enforce limits a cgroup outside the tree, which the agent does not create: KubeletConfiguration's kubeReservedCgroup
// or systemReservedCgroup, a slice with the systemd driver. It must exist.
func (t *Tree) Enforce(cgroup string, limits Resources) error {
	n := names.Parse(cgroup)
	if t.systemd.Load() {
		n = names.ParseSlice(cgroup)
	}
	for controller, dir := range t.dirs(n) {
		if _, err := os.Stat(dir); err != nil && t.kept(controller) {
			return fmt.Errorf("limit cgroup %s: %w; create it before the agent starts, or remove it from "+
				"enforceNodeAllocatable", cgroup, err)
		}
	}
	if err := t.set(n, limits); err != nil {
		return fmt.Errorf("limit cgroup %s: %w", cgroup, err)
	}
	return nil
}

// kept reports whether limits are written to a controller. "" is the only path of cgroup v2; on a machine with both
// hierarchies that path has no controller.
func (t *Tree) kept(controller string) bool {
	switch controller {
	case "":
		return t.v2
	case "cpu", "memory", "pids":
		return true
	}
	return false
}

// spell returns the path of n in the form of the driver in use.
func (t *Tree) spell(n names.Name) string { return n.Spell(t.systemd.Load()) }

// dirs returns the directories of n: one per mounted controller on v1, one with the key "" on v2.
func (t *Tree) dirs(n names.Name) map[string]string {
	if t.v2 {
		return map[string]string{"": filepath.Join(t.unified, t.spell(n))}
	}
	dirs := make(map[string]string, len(t.mounts))
	for controller, mount := range t.mounts {
		dirs[controller] = filepath.Join(mount, t.spell(n))
	}
	return dirs
}

// manager returns the library's manager of n.
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

// create creates n, if it does not exist, in every mounted controller, and sets r.
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

// change waits until the caller may change the hierarchy. The caller must call done when it has finished.
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
