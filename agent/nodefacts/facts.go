package nodefacts

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	occgroups "github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/host/kernel"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Facts are the facts of the node. Its methods may be called from any goroutine. Create it with New.
type Facts struct {
	appArmor bool
	dns      dnsFile
	now      atomic.Pointer[spec.Node]
	// updating is held while now is replaced.
	updating sync.Mutex
}

// New completes the settings of the node with what the kernel and the machine's files say. resolvConf is the file with
// the DNS settings, or "". What cannot be read is logged and counts as absent.
func New(settings spec.Node, resolvConf string, log *slog.Logger) *Facts {
	n := settings
	n.Swap.Capacity = swapBytes()
	n.ThermalThrottlePaths = thermalThrottlePaths()
	n.HugepageSizes = occgroups.HugePageSizes()
	if n.SELinux = kernel.SELinux(); n.SELinux {
		label, err := selinuxFileLabel("/usr/share/containers/selinux/contexts", "/etc/selinux")
		if err != nil {
			log.Warn("cannot read the SELinux label of container files; volumes are mounted without labels", "err", err)
		}
		n.SELinuxFileLabel = label
	}
	n.NoResolvConf = resolvConf == ""
	f := &Facts{appArmor: appArmorEnabled(), dns: dnsFile{path: resolvConf, log: log}}
	f.now.Store(&n)
	_, _ = f.Fresh() // an error is logged, and counts for each sandbox
	return f
}

// Spec returns the facts as they are now, with the DNS settings that were read last. They must not be changed.
func (f *Facts) Spec() *spec.Node { return f.now.Load() }

// Fresh is Spec with the present DNS settings: they change while the agent runs, with another network or a new lease of
// DHCP. It is an error if they have never been read: as with the kubelet, pods wait for them, because they keep what
// they start with. CoreDNS, for example, would have the runtime's own settings instead, and not work.
func (f *Facts) Fresh() (*spec.Node, error) {
	conf, changed, err := f.dns.read()
	if changed {
		f.change(func(n *spec.Node) { n.Resolv = conf })
	}
	return f.Spec(), err
}

// AppArmor reports whether the kernel enforces AppArmor profiles.
func (f *Facts) AppArmor() bool { return f.appArmor }

// Update takes over addresses and allocatable resources of the Node object. It reports whether the addresses at which
// pods see their node have changed.
func (f *Facts) Update(o *corev1.Node, allocatable corev1.ResourceList) (moved bool) {
	f.change(func(n *spec.Node) {
		n.Allocatable = allocatable
		ips := hostIPs(o.Status.Addresses)
		n.HostIPs, moved = ips, !slices.Equal(ips, n.HostIPs)
	})
	return moved
}

// UseSystemd takes over whether the runtime uses the cgroup driver of systemd.
func (f *Facts) UseSystemd(systemd bool) {
	f.change(func(n *spec.Node) { n.Cgroups.Systemd = systemd })
}

// UseCPUs takes over which containers have CPUs for themselves: has reports whether one has some.
func (f *Facts) UseCPUs(has func(*corev1.Pod, *corev1.Container) bool) {
	f.change(func(n *spec.Node) { n.Managers.HasCPUs = has })
}

func (f *Facts) change(apply func(*spec.Node)) {
	f.updating.Lock()
	defer f.updating.Unlock()
	next := *f.now.Load()
	apply(&next)
	f.now.Store(&next)
}

// hostIPs returns the addresses at which pods see their node: the first one, and the first one of the other IP family.
// Internal addresses come before external ones, which a cloud may give to nodes that have no others. A cloud may also
// list several of one family. An address with a zone, which the API of pods does not take, does not count.
func hostIPs(all []corev1.NodeAddress) []string {
	var ips []string
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range all {
			if a.Type == kind {
				ips = append(ips, a.Address)
			}
		}
	}
	return podutil.IPs(ips)
}
