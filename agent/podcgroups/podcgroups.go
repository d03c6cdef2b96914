// Package podcgroups creates, resizes, finds and removes the cgroups of pods, and sets what their classes get.
//
// It owns which size and which limits a pod's cgroup gets from its spec; package cgroups owns the hierarchy. It never
// decides when. The supervisor and the executor of steps call it. A crash leaves a cgroup without its limits or without
// its pod; Prepare completes the one, and the supervisor finds the other with Pods.
package podcgroups

import (
	"cmp"
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/host/cgroups"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/metrics/usage"
)

// noBound removes a limit; for the kernel, 0 means no change.
const noBound = -1

// removeTimeout bounds an attempt to remove a cgroup. A process that is stuck in the kernel cannot be killed: the error
// names it.
const removeTimeout = 30 * time.Second

// Cgroups is the cgroups of pods in one hierarchy.
type Cgroups struct {
	tree          *cgroups.Tree
	node          func() *spec.Node
	done          func(operation string, took time.Duration)
	removeTimeout time.Duration
}

// New returns the cgroups of pods in tree. node returns the node's facts. done receives each operation: create, update
// or destroy.
func New(tree *cgroups.Tree, node func() *spec.Node, done func(operation string, took time.Duration)) *Cgroups {
	return &Cgroups{tree: tree, node: node, done: done, removeTimeout: removeTimeout}
}

// count counts an operation that began at a time.
func (c *Cgroups) count(operation string, began time.Time) { c.done(operation, time.Since(began)) }

// Prepare creates the pod's cgroup, and returns its size. It keeps the size of an existing cgroup, because resizes have
// their own order.
func (c *Cgroups) Prepare(pod *corev1.Pod) (*podstate.Size, error) {
	want := spec.PodCgroup(pod, c.node())
	r := created(want)
	has, there, err := c.tree.PodSize(nameOf(pod), r)
	if err != nil {
		return nil, err
	}
	if !there {
		defer c.count("create", time.Now())
		return &want.Size, c.tree.CreatePod(nameOf(pod), r)
	}
	defer c.count("update", time.Now())
	size := &podstate.Size{
		Shares: int64(has.CPUShares),
		Quota:  has.CPUQuota,
		Period: int64(has.CPUPeriod),
		Memory: has.Memory,
	}
	return size, c.tree.UpdatePod(nameOf(pod), kept(want, has))
}

// Restore creates the cgroup of a prepared pod again if somebody has removed it, as with systemctl stop; on cgroup v1
// that leaves it in some controllers. A runtime would create it without limits.
func (c *Cgroups) Restore(pod *corev1.Pod) error {
	_, there, err := c.tree.PodSize(nameOf(pod), cgroups.Resources{})
	if !there && err == nil {
		_, err = c.Prepare(pod)
	}
	return err
}

// Resize gives the pod's cgroup another size.
func (c *Cgroups) Resize(pod *corev1.Pod, to podstate.Size) error {
	defer c.count("update", time.Now())
	has, _, err := c.tree.PodSize(nameOf(pod), cgroups.Resources{})
	if err != nil {
		return err
	}
	return c.tree.UpdatePod(nameOf(pod), resized(spec.PodCgroup(pod, c.node()), has, to))
}

// created returns what a new cgroup gets.
func created(want spec.PodResources) cgroups.Resources {
	return cgroups.Resources{
		CPUShares: uint64(want.Size.Shares),
		CPUQuota:  want.Size.Quota,
		CPUPeriod: uint64(want.Size.Period),
		Memory:    want.Size.Memory,
		Pids:      cmp.Or(want.Pids, noBound), // the removal of an earlier pod with this UID may have left 0
		HugePages: want.Hugepages,
		Unified:   want.Unified(want.Size.Memory),
	}
}

// kept returns what a cgroup gets that keeps the size which it has.
func kept(want spec.PodResources, has cgroups.Resources) cgroups.Resources {
	r := created(want)
	return cgroups.Resources{Pids: r.Pids, HugePages: r.HugePages, Unified: want.Unified(has.Memory)}
}

// resized returns what a cgroup gets together with another size than it has.
func resized(want spec.PodResources, has cgroups.Resources, to podstate.Size) cgroups.Resources {
	r := cgroups.Resources{CPUShares: uint64(to.Shares), Memory: noBound, Unified: want.Unified(to.Memory)}
	switch {
	case to.Quota > 0:
		r.CPUQuota, r.CPUPeriod = to.Quota, uint64(to.Period)
	case has.CPUQuota > 0: // a kernel without CFS bandwidth control has no file for it
		r.CPUQuota = noBound
	}
	if to.Memory > 0 {
		r.Memory = to.Memory
	}
	return r
}

// MemoryUsage returns how much memory the pod uses, by its cgroup.
func (c *Cgroups) MemoryUsage(pod *corev1.Pod) (bytes uint64, err error) {
	return c.tree.PodMemoryUsage(nameOf(pod))
}

// ContainerMemory returns how much memory a container of the pod uses, by its cgroup. ok is false if it has none with
// processes.
func (c *Cgroups) ContainerMemory(pod *corev1.Pod, id string) (bytes uint64, ok bool) {
	parent, err := c.tree.PodParent(nameOf(pod))
	if err != nil {
		return 0, false
	}
	return usage.NewHierarchy(c.tree.Mounts()).ContainerMemory(parent, id)
}

// Remove removes the cgroup of the pod and kills what still runs in it.
func (c *Cgroups) Remove(ctx context.Context, pod *corev1.Pod) error {
	defer c.count("destroy", time.Now())
	ctx, cancel := context.WithTimeout(ctx, c.removeTimeout)
	defer cancel()
	var errs []error
	for _, class := range classes(pod) {
		errs = append(errs, c.tree.RemovePod(ctx, cgroups.Pod{UID: pod.UID, QOS: class}))
	}
	return errors.Join(errs...)
}

// Exists reports whether the pod has a cgroup.
func (c *Cgroups) Exists(pod *corev1.Pod) (bool, error) {
	for _, class := range classes(pod) {
		if there, err := c.tree.PodExists(cgroups.Pod{UID: pod.UID, QOS: class}); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// Pods returns the UIDs of the pods that have a cgroup.
func (c *Cgroups) Pods() ([]types.UID, error) { return c.tree.Pods() }

// Path returns the path of the pod's cgroup below the root of the hierarchy; empty if the pod cannot have one.
func (c *Cgroups) Path(pod *corev1.Pod) string {
	path, err := c.tree.PodParent(nameOf(pod))
	if err != nil {
		return "" // its UID cannot name a cgroup; such a pod is never admitted
	}
	return path
}

// SetDemand sets what the classes get from what their pods request together: their CPU shares, and the memory that is
// protected. It writes only what the kernel has otherwise.
func (c *Cgroups) SetDemand(d podstate.Demand) error {
	defer c.count("update", time.Now())
	return errors.Join(
		c.tree.SetShares(d.BurstableCPU),
		c.tree.Protect(cgroups.Protection{Guaranteed: d.GuaranteedMemory, Burstable: d.BurstableMemory}),
	)
}

func nameOf(pod *corev1.Pod) cgroups.Pod { return cgroups.Pod{UID: pod.UID, QOS: podutil.QOS(pod)} }

// classes returns the QoS classes in which the pod's cgroup may be: all of them if only its UID is known.
func classes(pod *corev1.Pod) []corev1.PodQOSClass {
	if len(pod.Spec.Containers) > 0 {
		return []corev1.PodQOSClass{podutil.QOS(pod)}
	}
	return []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}
}

// None is a node on which pods have no cgroups of their own (cgroupsPerQOS: false).
type None struct{}

// Prepare does nothing. There is no size to compare later ones with.
func (None) Prepare(*corev1.Pod) (*podstate.Size, error) { return nil, nil }

// Restore does nothing.
func (None) Restore(*corev1.Pod) error { return nil }

// Resize does nothing.
func (None) Resize(*corev1.Pod, podstate.Size) error { return nil }

// MemoryUsage returns an error: there is no cgroup.
func (None) MemoryUsage(*corev1.Pod) (uint64, error) {
	return 0, errors.New("pods have no cgroups of their own")
}

// ContainerMemory returns that it is not known: there is no cgroup.
func (None) ContainerMemory(*corev1.Pod, string) (bytes uint64, ok bool) { return 0, false }

// Remove does nothing.
func (None) Remove(context.Context, *corev1.Pod) error { return nil }

// Exists reports whether the pod has a cgroup: it has none.
func (None) Exists(*corev1.Pod) (bool, error) { return false, nil }

// Pods returns none.
func (None) Pods() ([]types.UID, error) { return nil, nil }

// Path returns nothing.
func (None) Path(*corev1.Pod) string { return "" }

// SetDemand does nothing.
func (None) SetDemand(podstate.Demand) error { return nil }
