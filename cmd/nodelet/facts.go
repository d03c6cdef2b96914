package main

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	occgroups "github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/host/cgroups"
	"github.com/nodelet/nodelet/kube/node"
)

// nodeConfig is what kube/node needs of the configuration.
func nodeConfig(c *config.Config) node.Config {
	out := node.Config{
		Name: c.Node.Name, Register: c.Node.Register, Labels: c.Node.Labels, Taints: c.Node.Taints, ProviderID: c.Node.ProviderID,
		IPs: c.Node.IPs, KubeletPort: int32(c.Server.Port), ExternalCloud: c.Node.ExternalCloud,
		AttachDetach: c.Node.ControllerAttachDetach, LocalStorage: c.Node.LocalStorageIsolation, RootDir: c.Paths.Root,
		DeclaredFeatures: declaredFeatures(),
		MaxPods:          c.Node.MaxPods, PodsPerCore: c.Node.PodsPerCore, MaxImages: c.Node.MaxImages,
		Reserved:       []corev1.ResourceList{c.Reserved.Kube, c.Reserved.System},
		KubeletVersion: config.KubeletVersion(), UserAgent: "nodelet-heartbeat/" + config.KubeletVersion(),
		StatusInterval: c.Node.StatusInterval, ReportInterval: c.Node.ReportInterval, LeaseDuration: c.Node.LeaseDuration,
	}
	for _, t := range c.Eviction.Thresholds {
		if h, counts := holdBack(t); counts {
			out.HoldBacks = append(out.HoldBacks, h)
		}
	}
	return out
}

// holdBack is what a hard eviction threshold keeps from the pods.
func holdBack(t config.Threshold) (node.HoldBack, bool) {
	of := map[string]corev1.ResourceName{"memory.available": corev1.ResourceMemory, "nodefs.available": corev1.ResourceEphemeralStorage}
	resource, counts := of[t.Signal]
	if !counts || t.GracePeriod > 0 {
		return node.HoldBack{}, false
	}
	return node.HoldBack{Resource: resource, Quantity: t.Quantity, Percentage: t.Percentage}, true
}

// facts are what spec knows of the node. They are made anew when the Node object changes, and read by every step.
type facts struct {
	cfg *config.Config
	log *slog.Logger
	now atomic.Pointer[spec.Node]
	// changing is held while now is replaced.
	changing sync.Mutex
}

func newFacts(cfg *config.Config, log *slog.Logger) *facts { return &facts{cfg: cfg, log: log} }

func (f *facts) spec() *spec.Node { return f.now.Load() }

// begin fills in what stays as it is while the agent runs.
func (f *facts) begin(o *corev1.Node, capacity, allocatable corev1.ResourceList, m machine) {
	c := f.cfg
	s := &spec.Node{
		Name: c.Node.Name, PodLogsDir: c.Paths.PodLogs, PodsDir: filepath.Join(c.Paths.Root, "pods"),
		ClusterDNS: texts(c.Pods.DNS), ClusterDomain: c.Pods.Domain, NoResolvConf: c.Paths.ResolvConf == "",
		SeccompDir: filepath.Join(c.Paths.Root, "seccomp"), SeccompDefault: c.Pods.SeccompDefault,
		Cgroups:  spec.Cgroups{Root: c.Cgroups.Root, Systemd: c.Cgroups.Driver == "systemd", Flat: !c.Cgroups.PerQOS},
		CgroupV2: m.cgroupV2, CPUCFSQuota: c.Cgroups.CPUQuota, CPUCFSQuotaPeriod: c.Cgroups.CPUPeriod, PodPidsLimit: c.Pods.PidsLimit,
		Swap:                 spec.Swap{Limited: c.Cgroups.SwapBehavior == "LimitedSwap", Controller: m.swapController, Capacity: m.swap},
		MemoryQoS:            memoryQoS(c),
		SELinux:              m.selinux,
		SELinuxMount:         c.Gate("SELinuxMount"),
		ThermalThrottlePaths: m.thermalThrottle,
		SingleProcessOOMKill: c.Kubelet.SingleProcessOOMKill != nil && *c.Kubelet.SingleProcessOOMKill,
		Capacity:             capacity,
		HugepageSizes:        occgroups.HugePageSizes(),
	}
	if s.SELinux {
		label, err := selinuxFileLabel("/usr/share/containers/selinux/contexts", "/etc/selinux")
		if err != nil {
			f.log.Warn("volumes are not mounted with SELinux labels: cannot learn how the policy labels the files of containers", "err", err)
		}
		s.SELinuxFileLabel = label
	}
	if path := c.Paths.ResolvConf; path != "" {
		text, err := os.ReadFile(path)
		if err == nil {
			s.Resolv, err = spec.ParseResolvConf(text)
		}
		if err != nil {
			f.log.Warn("cannot read the node's DNS settings, pods with dnsPolicy Default get none", "file", path, "err", err)
		}
	}
	f.now.Store(s)
	f.update(o, allocatable)
}

// update takes over what the Node object says of addresses and resources.
func (f *facts) update(o *corev1.Node, allocatable corev1.ResourceList) {
	f.changing.Lock()
	defer f.changing.Unlock()
	next := *f.now.Load()
	next.Allocatable = allocatable
	next.HostIPs = nil
	for _, a := range o.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			next.HostIPs = append(next.HostIPs, a.Address)
		}
	}
	f.now.Store(&next)
}

// useDriver takes over the cgroup driver that the runtime names.
func (f *facts) useDriver(driver string) {
	f.changing.Lock()
	defer f.changing.Unlock()
	next := *f.now.Load()
	next.Cgroups.Systemd = driver == cgroups.DriverSystemd
	f.now.Store(&next)
}

func texts(all []netip.Addr) []string {
	out := make([]string, len(all))
	for i, a := range all {
		out[i] = a.String()
	}
	return out
}
