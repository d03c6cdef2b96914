package nodefacts

import (
	"net/netip"
	"os"
	"path/filepath"

	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/config"
)

// Settings returns what agent/spec needs of the configuration; New adds the rest.
func Settings(c *config.Config) spec.Node {
	s := spec.Node{
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
			SingleProcessOOMKill: ptr.Deref(c.Kubelet.SingleProcessOOMKill, false),
		},
		Swap:         spec.Swap{Limited: c.Cgroups.SwapBehavior == "LimitedSwap"},
		SELinuxMount: c.Gate("SELinuxMount"),
		NodeDNS:      spec.NodeDNS{ClusterDNS: texts(c.Pods.DNS), ClusterDomain: c.Pods.Domain},
	}
	if c.Gate("DefaultPodSysctls") {
		s.DefaultSysctls = c.Kubelet.DefaultPodSysctls
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
