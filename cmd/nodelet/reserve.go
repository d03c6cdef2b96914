package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/host/cgroups"
)

// pids is the name under which kubeReserved and systemReserved keep processes back.
const pids corev1.ResourceName = "pid"

// enforceRetry is how soon a limit that the kernel refused is tried again; it refuses to go below what is in use.
const enforceRetry = time.Minute

// makeTree makes the cgroups that pods live in, and bounds what is reserved where the configuration asks for that. The
// memory of all pods is bounded later (enforce): the kernel may refuse it while they use more.
func (n *nodelet) makeTree() error {
	if n.cfg.Cgroups.PerQOS {
		limits := n.podLimits()
		limits.Memory = 0
		if err := n.cgroups.Ensure(limits); err != nil {
			return fmt.Errorf("make the cgroups of pods: %w", err)
		}
	}
	for _, r := range []struct {
		key, cgroup string
		list        corev1.ResourceList
	}{
		{"system-reserved", n.cfg.Reserved.SystemCgroup, n.cfg.Reserved.System},
		{"kube-reserved", n.cfg.Reserved.KubeCgroup, n.cfg.Reserved.Kube},
	} {
		var limits cgroups.Resources
		switch {
		case slices.Contains(n.cfg.Cgroups.Enforce, r.key):
			limits = limitsFor(r.list)
		case slices.Contains(n.cfg.Cgroups.Enforce, r.key+"-compressible"):
			limits.CPUShares = limitsFor(r.list).CPUShares
		default:
			continue
		}
		if err := n.cgroups.Enforce(r.cgroup, limits); err != nil {
			return fmt.Errorf("enforceNodeAllocatable %s: %w", r.key, err)
		}
	}
	return nil
}

// enforce bounds the memory of all pods, as soon as the kernel lets it.
func (n *nodelet) enforce(ctx context.Context) {
	memory := n.podLimits().Memory
	if !n.cfg.Cgroups.PerQOS || memory <= 0 {
		return
	}
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		}
		err := n.cgroups.Limit(cgroups.Resources{Memory: memory})
		if err == nil {
			n.nodeEvent(corev1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
			return
		}
		n.nodeEvent(corev1.EventTypeWarning, "FailedNodeAllocatableEnforcement", err.Error())
		n.log.Warn("cannot bound the memory of all pods", "err", err, "again in", enforceRetry)
		retry.Reset(enforceRetry)
	}
}

// podLimits bounds all pods together: by what is left of the machine after the reservations, or, where
// enforceNodeAllocatable leaves pods out, by the machine itself, for the kernel's own CPU weight would starve them.
func (n *nodelet) podLimits() cgroups.Resources {
	list := maps.Clone(n.node.Capacity())
	if all := pidsOfMachine(); all > 0 {
		list[pids] = quantity(all)
	}
	if slices.Contains(n.cfg.Cgroups.Enforce, "pods") {
		for name, all := range list {
			left := all.DeepCopy()
			for _, reserved := range []corev1.ResourceList{n.cfg.Reserved.Kube, n.cfg.Reserved.System} {
				left.Sub(reserved[name])
			}
			if left.Sign() < 0 {
				left.Set(0)
			}
			list[name] = left
		}
	}
	limits := limitsFor(list)
	if n.facts.spec().Cgroups.Systemd {
		limits.CPUSet = onlineCPUs()
	}
	return limits
}

// limitsFor turns an amount of resources into the limits of a cgroup.
func limitsFor(list corev1.ResourceList) cgroups.Resources {
	r := cgroups.Resources{Memory: list.Memory().Value()}
	if cpu, ok := list[corev1.ResourceCPU]; ok {
		r.CPUShares = cgroups.Shares(cpu.MilliValue())
	}
	if q, ok := list[pids]; ok {
		r.Pids = q.Value()
	}
	for name, q := range list {
		if size, ok := spec.HugepageSize(name); ok {
			if r.HugePages == nil {
				r.HugePages = map[int64]int64{}
			}
			r.HugePages[size] = q.Value()
		}
	}
	return r
}

// onlineCPUs is a list such as 0-3; empty where the kernel does not tell.
func onlineCPUs() string {
	text, _ := os.ReadFile("/sys/devices/system/cpu/online")
	return strings.TrimSpace(string(text))
}

func quantity(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }
