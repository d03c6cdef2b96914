package nodefacts

import (
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	occgroups "github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/spec"
)

// Facts are the facts of the node. Its methods may be called from any goroutine. Create it with New.
type Facts struct {
	appArmor bool
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
	if n.SELinux = selinuxEnabled(); n.SELinux {
		label, err := selinuxFileLabel("/usr/share/containers/selinux/contexts", "/etc/selinux")
		if err != nil {
			log.Warn("cannot read the SELinux label of container files; volumes are mounted without labels", "err", err)
		}
		n.SELinuxFileLabel = label
	}
	n.NoResolvConf = resolvConf == ""
	if resolvConf != "" {
		text, err := os.ReadFile(resolvConf)
		if err == nil {
			n.Resolv, err = spec.ParseResolvConf(text)
		}
		if err != nil {
			log.Warn("cannot read the node's DNS settings; pods with dnsPolicy Default get none", "file", resolvConf, "err", err)
		}
	}
	f := &Facts{appArmor: appArmorEnabled()}
	f.now.Store(&n)
	return f
}

// Spec returns the facts as they are now. They must not be changed.
func (f *Facts) Spec() *spec.Node { return f.now.Load() }

// AppArmor reports whether the kernel enforces AppArmor profiles.
func (f *Facts) AppArmor() bool { return f.appArmor }

// Update takes over addresses and allocatable resources of the Node object.
func (f *Facts) Update(o *corev1.Node, allocatable corev1.ResourceList) {
	f.change(func(n *spec.Node) {
		n.Allocatable = allocatable
		n.HostIPs = nil
		for _, a := range o.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				n.HostIPs = append(n.HostIPs, a.Address)
			}
		}
	})
}

// UseSystemd takes over whether the runtime uses the cgroup driver of systemd.
func (f *Facts) UseSystemd(systemd bool) {
	f.change(func(n *spec.Node) { n.Cgroups.Systemd = systemd })
}

func (f *Facts) change(apply func(*spec.Node)) {
	f.updating.Lock()
	defer f.updating.Unlock()
	next := *f.now.Load()
	apply(&next)
	f.now.Store(&next)
}
