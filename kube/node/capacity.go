package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// EvictionThreshold is a hard eviction threshold, which is subtracted from what pods may use: memory.available from
// memory, nodefs.available from ephemeral-storage. One of Quantity and Percentage is set.
type EvictionThreshold struct {
	Resource   corev1.ResourceName
	Quantity   *resource.Quantity
	Percentage float64 // 0 to 100, of the capacity
}

// capacity returns the node's capacity: cpu, memory, pods, hugepages-SIZE and, unless disk is 0, ephemeral-storage.
// disk is in bytes.
func capacity(m Machine, disk int64, maxPods, podsPerCore int) corev1.ResourceList {
	if podsPerCore > 0 {
		maxPods = min(maxPods, podsPerCore*m.CPUs)
	}
	list := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(int64(m.CPUs)*1000, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(m.Memory, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(int64(maxPods), resource.DecimalSI),
	}
	if disk > 0 {
		list[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(disk, resource.DecimalSI)
	}
	for size, all := range m.HugePages {
		list[podutil.HugePages(int64(size))] = *resource.NewQuantity(int64(all), resource.BinarySI)
	}
	return list
}

// allocatable returns the part of the capacity that pods may use: it subtracts what is reserved, the hard eviction
// thresholds and, from memory, the huge pages. No value falls below zero.
func allocatable(capacity corev1.ResourceList, reserved []corev1.ResourceList,
	evictionHard []EvictionThreshold) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, total := range capacity {
		left := total.DeepCopy()
		for _, r := range reserved {
			if q, ok := r[name]; ok {
				left.Sub(q)
			}
		}
		for _, t := range evictionHard {
			if t.Resource == name {
				left.Sub(t.amount(total))
			}
		}
		list[name] = notNegative(left)
	}
	memory, ok := list[corev1.ResourceMemory]
	for name, pages := range capacity {
		if ok && podutil.IsHugePages(name) {
			memory.Sub(pages)
		}
	}
	if ok {
		list[corev1.ResourceMemory] = notNegative(memory)
	}
	return list
}

// Reservation returns what the configuration keeps from pods in all: what is reserved, and the hard eviction
// thresholds.
func (r *Reporter) Reservation() corev1.ResourceList {
	c, capacity := &r.cfg, r.Capacity()
	list := corev1.ResourceList{}
	add := func(name corev1.ResourceName, q resource.Quantity) {
		if _, has := capacity[name]; has && !q.IsZero() {
			sum := list[name]
			sum.Add(q)
			list[name] = sum
		}
	}
	for _, r := range c.Reserved {
		for name, q := range r {
			add(name, q)
		}
	}
	for _, t := range c.EvictionHard {
		add(t.Resource, t.amount(capacity[t.Resource]))
	}
	return list
}

// checkReservation returns an error if the configuration keeps more from pods than the machine has. Nothing would be
// left to limit the pods to.
func checkReservation(reserved, capacity corev1.ResourceList) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(reserved)) {
		keep, has := reserved[name], capacity[name]
		if keep.Cmp(has) > 0 {
			errs = append(errs, fmt.Errorf("kubeReserved, systemReserved and evictionHard keep %s of %s from pods, but this "+
				"machine has %s: lower them", &keep, name, &has))
		}
	}
	return errors.Join(errs...)
}

func (t EvictionThreshold) amount(of resource.Quantity) resource.Quantity {
	if t.Quantity != nil {
		return *t.Quantity
	}
	share := float64(float32(t.Percentage) / 100) // the kubelet's precision, so that the bytes are the same
	return *resource.NewQuantity(int64(float64(of.Value())*share), resource.BinarySI)
}

func notNegative(q resource.Quantity) resource.Quantity {
	if q.Sign() < 0 {
		q.Set(0)
	}
	return q
}

// withoutExtended returns resources of the Node object, with 0 for each extended resource.
func withoutExtended(object corev1.ResourceList) corev1.ResourceList {
	list := maps.Clone(object)
	for name := range list {
		if !podutil.IsNative(name) {
			list[name] = *resource.NewQuantity(0, resource.DecimalSI)
		}
	}
	return list
}

// overlay replaces resources of the Node object by the machine's own. Extended resources that another component keeps
// in the object stay. Huge page sizes that the kernel no longer has are removed.
func overlay(object, own corev1.ResourceList) corev1.ResourceList {
	merged := corev1.ResourceList{}
	for name, q := range object {
		if _, ours := own[name]; ours || !podutil.IsHugePages(name) {
			merged[name] = q
		}
	}
	maps.Copy(merged, own)
	return merged
}
