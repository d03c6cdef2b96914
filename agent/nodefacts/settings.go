package nodefacts

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/kube/poddir"
)

// Settings returns what agent/spec needs of the configuration; New adds the rest.
func Settings(c *config.Config) spec.Node {
	k := &c.Kubelet
	s := spec.Node{
		IPv6First:      len(c.Node.IPs) > 0 && c.Node.IPs[0].Is6(),
		PodLogsDir:     k.PodLogsDir,
		PodsDir:        filepath.Join(c.Paths.Root, poddir.Pods),
		SeccompDir:     filepath.Join(c.Paths.Root, "seccomp"),
		SeccompDefault: *k.SeccompDefault,
		Cgroups: spec.Cgroups{
			Root:    k.CgroupRoot,
			Systemd: k.CgroupDriver == "systemd",
			Flat:    !*k.CgroupsPerQOS,
		},
		Managers: spec.Managers{
			StaticCPU:    k.CPUManagerPolicy == config.CPUPolicyStatic,
			StaticMemory: k.MemoryManagerPolicy == config.MemoryPolicyStatic,
			NoQuota:      c.Gate("DisableCPUQuotaWithExclusiveCPUs"),
		},
		Limits: spec.Limits{
			CPUCFSQuota:          *k.CPUCFSQuota,
			CPUCFSQuotaPeriod:    k.CPUCFSQuotaPeriod.Duration,
			PodPidsLimit:         *k.PodPidsLimit,
			SingleProcessOOMKill: ptr.Deref(k.SingleProcessOOMKill, false),
		},
		Swap:         spec.Swap{Limited: k.MemorySwap.SwapBehavior == "LimitedSwap"},
		SELinuxMount: c.Gate("SELinuxMount"),
		NodeDNS: spec.NodeDNS{
			ClusterDNS:    addresses(k.ClusterDNS),
			ClusterDomain: strings.TrimSuffix(k.ClusterDomain, "."),
		},
	}
	if c.Gate("DefaultPodSysctls") {
		s.DefaultSysctls = k.DefaultPodSysctls
	}
	if c.Gate("MemoryQoS") { // KEP-2570
		s.MemoryQoS = &spec.MemoryQoS{
			PageSize:         int64(os.Getpagesize()),
			Tiered:           k.MemoryReservationPolicy == "TieredReservation",
			ThrottlingFactor: ptr.Deref(k.MemoryThrottlingFactor, 0),
		}
	}
	return s
}

// addresses returns IP addresses in their usual form, which is the shortest.
func addresses(texts []string) []string {
	out := make([]string, len(texts))
	for i, text := range texts {
		out[i] = netip.MustParseAddr(text).String()
	}
	return out
}
