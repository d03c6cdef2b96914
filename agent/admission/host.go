package admission

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Reasons of rejections for what the machine or its settings do not allow. They are the same as the kubelet's.
const (
	reasonSysctlForbidden = "SysctlForbidden"
	reasonAppArmor        = "AppArmor"
)

// safeSysctls belong to a namespace of the pod and do not affect other pods.
var safeSysctls = []string{
	"kernel.shm_rmid_forced",
	"net.ipv4.ip_local_port_range",
	"net.ipv4.ip_local_reserved_ports",
	"net.ipv4.ip_unprivileged_port_start",
	"net.ipv4.ping_group_range",
	"net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl",
	"net.ipv4.tcp_keepalive_probes",
	"net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_notsent_lowat",
	"net.ipv4.tcp_rmem",
	"net.ipv4.tcp_slow_start_after_idle",
	"net.ipv4.tcp_syncookies",
	"net.ipv4.tcp_wmem",
}

// forbidden rejects a pod with sysctls that the settings do not allow, or with an AppArmor profile that the kernel
// cannot enforce.
func forbidden(pod *corev1.Pod, node *Node) *podstate.Rejection {
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			if why := forbiddenSysctl(s.Name, &pod.Spec, node.UnsafeSysctls); why != "" {
				return reject(reasonSysctlForbidden, "forbidden sysctl: "+why)
			}
		}
	}
	if !node.AppArmor && wantsAppArmor(pod) {
		return reject(reasonAppArmor, "Cannot enforce AppArmor: AppArmor is not enabled on the host")
	}
	return nil
}

// forbiddenSysctl returns why a pod may not set a sysctl; empty if it may. A pod that shares a namespace with the
// host may not set the sysctls of that namespace.
func forbiddenSysctl(name string, spec *corev1.PodSpec, unsafe []string) string {
	name = sysctl.NormalizeName(name)
	for _, pattern := range slices.Concat(safeSysctls, unsafe) {
		ns, start, open := sysctl.GetNamespace(pattern)
		switch {
		case start != name && !(open && strings.HasPrefix(name, start)), ns == sysctl.UnknownNamespace:
			continue // a sysctl without a namespace would change the node; the configuration cannot name one
		case ns == sysctl.IPCNamespace && spec.HostIPC, ns == sysctl.NetNamespace && spec.HostNetwork,
			ns == sysctl.UTSNamespace && spec.HostNetwork, // runtimes share both namespaces or none
			ns == sysctl.UserNamespace && !podutil.HasUserNamespace(spec):
			return fmt.Sprintf("%q not allowed with host %s enabled", name, ns)
		}
		return ""
	}
	return fmt.Sprintf("%q not allowlisted", name)
}

// wantsAppArmor reports whether the pod or one of its containers has an AppArmor profile that must be enforced.
func wantsAppArmor(pod *corev1.Pod) bool {
	asks := func(p *corev1.AppArmorProfile) bool {
		return p != nil && p.Type != corev1.AppArmorProfileTypeUnconfined
	}
	if sc := pod.Spec.SecurityContext; sc != nil && asks(sc.AppArmorProfile) {
		return true
	}
	for _, c := range podutil.Containers(&pod.Spec) {
		if sc := c.SecurityContext; sc != nil && asks(sc.AppArmorProfile) {
			return true
		}
	}
	for key, value := range pod.Annotations {
		if strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) &&
			value != corev1.DeprecatedAppArmorBetaProfileNameUnconfined {
			return true
		}
	}
	return false
}
