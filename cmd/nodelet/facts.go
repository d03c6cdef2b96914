package main

import (
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/kube/node"
)

// nodeConfig is what kube/node needs of the configuration.
func nodeConfig(c *config.Config) node.Config {
	out := node.Config{
		Name: c.Node.Name,
		Registration: node.Registration{
			Register:      c.Node.Register,
			Labels:        c.Node.Labels,
			Taints:        c.Node.Taints,
			ProviderID:    c.Node.ProviderID,
			ExternalCloud: c.Node.ExternalCloud,
			AttachDetach:  c.Node.ControllerAttachDetach,
		},
		IPs:              c.Node.IPs,
		KubeletPort:      int32(c.Server.Port),
		LocalStorage:     c.Node.LocalStorageIsolation,
		RootDir:          c.Paths.Root,
		DeclaredFeatures: declaredFeatures(),
		MaxPods:          c.Node.MaxPods,
		PodsPerCore:      c.Node.PodsPerCore,
		MaxImages:        c.Node.MaxImages,
		Reserved:         []corev1.ResourceList{c.Reserved.Kube, c.Reserved.System},
		KubeletVersion:   config.KubeletVersion(),
		UserAgent:        "nodelet-heartbeat/" + config.KubeletVersion(),
		Intervals: node.Intervals{
			StatusInterval: c.Node.StatusInterval,
			ReportInterval: c.Node.ReportInterval,
			LeaseDuration:  c.Node.LeaseDuration,
		},
	}
	for _, t := range c.Eviction.Thresholds {
		if h, counts := holdBack(t); counts {
			out.HoldBacks = append(out.HoldBacks, h)
		}
	}
	return out
}

// declaredFeatures are the features of which the scheduler must know before it places pods that need them
// (node.status.declaredFeatures, KEP-5328), sorted.
func declaredFeatures() []string {
	return []string{
		"InPlacePodLevelResourcesVerticalScaling",
		"InPlacePodVerticalScalingInitContainers",
		"RestartAllContainersOnContainerExits",
	}
}

// holdBack returns what a hard eviction threshold withholds from the pods, and whether it does.
func holdBack(t config.Threshold) (node.HoldBack, bool) {
	of := map[string]corev1.ResourceName{
		"memory.available": corev1.ResourceMemory,
		"nodefs.available": corev1.ResourceEphemeralStorage,
	}
	resource, counts := of[t.Signal]
	if !counts || t.GracePeriod > 0 {
		return node.HoldBack{}, false
	}
	return node.HoldBack{Resource: resource, Quantity: t.Quantity, Percentage: t.Percentage}, true
}

// nodeSettings is what agent/spec needs of the configuration; package nodefacts adds the rest.
func nodeSettings(c *config.Config) spec.Node {
	s := spec.Node{
		Name:           c.Node.Name,
		PodLogsDir:     c.Paths.PodLogs,
		PodsDir:        filepath.Join(c.Paths.Root, "pods"),
		SeccompDir:     filepath.Join(c.Paths.Root, "seccomp"),
		SeccompDefault: c.Pods.SeccompDefault,
		Cgroups: spec.Cgroups{
			Root:    c.Cgroups.Root,
			Systemd: c.Cgroups.Driver == "systemd",
			Flat:    !c.Cgroups.PerQOS,
		},
		Managers: spec.Managers{
			StaticCPU:    c.Kubelet.CPUManagerPolicy == "static",
			StaticMemory: c.Kubelet.MemoryManagerPolicy == "Static",
			NoQuota:      c.Gate("DisableCPUQuotaWithExclusiveCPUs"),
			PodResources: c.Gate("PodLevelResourceManagers"),
		},
		Limits: spec.Limits{
			CPUCFSQuota:          c.Cgroups.CPUQuota,
			CPUCFSQuotaPeriod:    c.Cgroups.CPUPeriod,
			PodPidsLimit:         c.Pods.PidsLimit,
			SingleProcessOOMKill: c.Kubelet.SingleProcessOOMKill != nil && *c.Kubelet.SingleProcessOOMKill,
		},
		Swap:         spec.Swap{Limited: c.Cgroups.SwapBehavior == "LimitedSwap"},
		SELinuxMount: c.Gate("SELinuxMount"),
		NodeDNS:      spec.NodeDNS{ClusterDNS: texts(c.Pods.DNS), ClusterDomain: c.Pods.Domain},
	}
	if c.Gate("MemoryQoS") { // KEP-2570
		s.MemoryQoS = &spec.MemoryQoS{
			PageSize: int64(os.Getpagesize()),
			Tiered:   c.Kubelet.MemoryReservationPolicy == "TieredReservation",
		}
		if factor := c.Kubelet.MemoryThrottlingFactor; factor != nil {
			s.MemoryQoS.ThrottlingFactor = *factor
		}
	}
	return s
}

func texts(all []netip.Addr) []string {
	out := make([]string, len(all))
	for i, a := range all {
		out[i] = a.String()
	}
	return out
}
