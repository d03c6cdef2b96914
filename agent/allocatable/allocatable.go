package allocatable

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/host/cgroups"
	"github.com/nodelet/nodelet/host/cgroups/cpu"
	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/host/topology"
	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/periodic"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// pids is the name with which kubeReserved and systemReserved reserve processes.
const pids corev1.ResourceName = "pid"

// retryInterval is the time between two tries of a limit that the kernel refuses because more is in use, and between
// two looks at the machine.
const retryInterval = time.Minute

// Tree is what the package needs of the cgroups; *cgroups.Tree is one.
type Tree interface {
	// Ensure makes the cgroups of all pods.
	Ensure() error
	// Identity tells the cgroup of all pods from another one that is made after its removal.
	Identity() string
	// Limit changes the limits of the cgroup of all pods.
	Limit(cgroups.Resources) error
	// Enforce sets the limits of any other cgroup.
	Enforce(cgroup string, r cgroups.Resources) error
}

// Settings returns what an Enforcer needs of the configuration. The caller adds the rest.
func Settings(c *config.Config) Config {
	k, r := &c.Kubelet, c.Reserved()
	return Config{
		PerQOS:    *k.CgroupsPerQOS,
		Enforce:   k.EnforceNodeAllocatable,
		System:    Reservation{Resources: r.System, Cgroup: k.SystemReservedCgroup},
		Kube:      Reservation{Resources: r.Kube, Cgroup: k.KubeReservedCgroup},
		MemoryQoS: c.Gate("MemoryQoS"),

		ExclusiveCPUs: k.CPUManagerPolicy == config.CPUPolicyStatic,
	}
}

// Reservation is what is reserved for a part of the system, and the cgroup that this part runs in.
type Reservation struct {
	Resources corev1.ResourceList
	Cgroup    string
}

// Config is what an Enforcer needs. All fields are required.
type Config struct {
	Tree Tree
	// PerQOS makes cgroups for all pods together and for the QoS classes. Without it pods have no common limit.
	PerQOS bool
	// Enforce is KubeletConfiguration enforceNodeAllocatable.
	Enforce []string
	// System and Kube are KubeletConfiguration systemReserved and kubeReserved.
	System, Kube Reservation
	// MemoryQoS: the kernel never takes reserved memory from the reserved cgroups (KEP-2570, cgroup v2 only).
	MemoryQoS bool
	// ExclusiveCPUs: containers may have CPUs for themselves (cpuManagerPolicy: static). The cgroup of all pods then gets
	// no CPUs by name: the operator may have others in a partition of their own.
	ExclusiveCPUs bool
	// Capacity returns the resources of the machine.
	Capacity func() corev1.ResourceList
	// Systemd reports whether systemd is the cgroup driver.
	Systemd func() bool
	// Event records an event about the node.
	Event func(eventType, reason, message string)
	Log   *slog.Logger
}

// Enforcer enforces Node Allocatable. Create it with New.
type Enforcer struct {
	cfg Config
	// refused is the last error of a limit of all pods; empty if there was none. Only Run uses it.
	refused string
}

// New returns an Enforcer.
func New(c Config) *Enforcer { return &Enforcer{cfg: c} }

// Setup makes the cgroups that pods live in and limits them and the reserved cgroups. It sets no memory limit for all
// pods, because the kernel may refuse one while they use more: Run does that. Run also tries again what the kernel or
// systemd refuses now: pods run without it.
func (e *Enforcer) Setup() error {
	if e.cfg.PerQOS {
		if err := e.cfg.Tree.Ensure(); err != nil {
			return fmt.Errorf("make the cgroups of pods: %w", err)
		}
		limits := e.podLimits()
		limits.Memory = 0
		if err := e.cfg.Tree.Limit(limits); err != nil {
			e.cfg.Log.Debug("cannot limit the resources of all pods yet", "err", err)
		}
	}
	if err := e.limit("system", e.cfg.System); err != nil {
		return err
	}
	return e.limit("kube", e.cfg.Kube)
}

// limit limits the reserved cgroup of a part of the system if the configuration enforces that.
func (e *Enforcer) limit(part string, r Reservation) error {
	key := part + "-reserved"
	var limits cgroups.Resources
	switch {
	case e.enforces(key):
		limits = limitsFor(r.Resources)
		if e.cfg.MemoryQoS && limits.Memory > 0 {
			limits.Unified = map[string]string{"memory.min": strconv.FormatInt(limits.Memory, 10)}
		}
	case e.enforces(key + "-compressible"):
		limits.CPUShares = limitsFor(r.Resources).CPUShares
	default:
		return nil
	}
	if err := e.cfg.Tree.Enforce(r.Cgroup, limits); err != nil {
		err = fmt.Errorf("enforceNodeAllocatable %s: %w", key, err)
		e.failed(err)
		return err
	}
	e.enforced("Updated limits on " + part + " reserved cgroup " + r.Cgroup)
	return nil
}

// enforces reports whether the configuration enforces the limits of key.
func (e *Enforcer) enforces(key string) bool { return slices.Contains(e.cfg.Enforce, key) }

// Run limits the memory of all pods as soon as the kernel accepts it, and sets all limits again when the machine has
// changed: huge pages are set aside, memory or CPUs are added while the agent runs. It also sets them again when
// somebody has removed the cgroup of all pods, as with systemctl stop: the next pod would make it without limits.
func (e *Enforcer) Run(ctx context.Context) {
	if !e.cfg.PerQOS {
		return
	}
	var set cgroups.Resources
	limited := e.cfg.Tree.Identity()
	for {
		if e.cfg.Tree.Identity() != limited && e.makeAgain() {
			limited, set = e.cfg.Tree.Identity(), cgroups.Resources{}
		}
		if limits := e.podLimits(); !reflect.DeepEqual(limits, set) && e.limitPods(limits) {
			set = limits
		}
		if !backoff.Sleep(ctx, periodic.Until(retryInterval)) {
			return
		}
	}
}

// makeAgain makes the cgroups that pods live in again, and reports whether it could.
func (e *Enforcer) makeAgain() bool {
	if err := e.cfg.Tree.Ensure(); err != nil {
		e.cfg.Log.Warn("the cgroup of all pods was removed, and cannot be made again", "err", err, "retryIn", retryInterval)
		return false
	}
	e.cfg.Log.Warn("the cgroup of all pods was removed, it gets its limits again")
	return true
}

// limitPods limits all pods together and reports whether the kernel has accepted that.
func (e *Enforcer) limitPods(limits cgroups.Resources) bool {
	if err := e.cfg.Tree.Limit(limits); err != nil {
		e.failed(err)
		if e.refused != err.Error() {
			e.refused = err.Error()
			e.cfg.Log.Warn("cannot limit the resources of all pods", "err", err, "retryEvery", retryInterval)
		}
		return false
	}
	e.refused = ""
	e.enforced("Updated Node Allocatable limit across pods")
	return true
}

func (e *Enforcer) enforced(what string) {
	e.cfg.Event(corev1.EventTypeNormal, "NodeAllocatableEnforced", what)
}

func (e *Enforcer) failed(err error) {
	e.cfg.Event(corev1.EventTypeWarning, "FailedNodeAllocatableEnforcement", err.Error())
}

// podLimits returns the limits of all pods together: what the reservations leave of the machine. If
// enforceNodeAllocatable leaves pods out, the limits are the machine itself, because the kernel's default CPU weight
// would starve them.
func (e *Enforcer) podLimits() cgroups.Resources {
	list := maps.Clone(e.cfg.Capacity())
	if all, err := machine.TaskLimit("/proc"); err == nil {
		list[pids] = *resource.NewQuantity(all, resource.DecimalSI)
	}
	if e.enforces("pods") {
		for name, all := range list {
			left := all.DeepCopy()
			left.Sub(e.cfg.Kube.Resources[name])
			left.Sub(e.cfg.System.Resources[name])
			if left.Sign() < 0 {
				left.Set(0)
			}
			list[name] = left
		}
	}
	limits := limitsFor(list)
	if e.cfg.Systemd() && !e.cfg.ExclusiveCPUs {
		online, _ := topology.Online(os.DirFS("/")) // empty if the kernel does not say: no limit
		limits.CPUSet = online.String()
	}
	return limits
}

// limitsFor returns the cgroup limits for an amount of resources.
func limitsFor(list corev1.ResourceList) cgroups.Resources {
	r := cgroups.Resources{Memory: list.Memory().Value()}
	if q, ok := list[corev1.ResourceCPU]; ok {
		r.CPUShares = uint64(cpu.Shares(q.MilliValue()))
	}
	if q, ok := list[pids]; ok {
		r.Pids = q.Value()
	}
	for name, q := range list {
		if size, ok := podutil.HugePageSize(name); ok {
			if r.HugePages == nil {
				r.HugePages = map[int64]int64{}
			}
			r.HugePages[size] = q.Value()
		}
	}
	return r
}
