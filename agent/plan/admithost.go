package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"
)

// Reasons of refusals for what the machine or its settings do not allow; they are the kubelet's.
const (
	reasonSysctlForbidden = "SysctlForbidden"
	reasonAppArmor        = "AppArmor"
)

// Host is what admission needs to know of the machine and its settings beside the Node object.
type Host struct {
	// UnsafeSysctls are the sysctls that pods may set beyond the safe ones (KubeletConfiguration allowedUnsafeSysctls): names,
	// or prefixes that end in *.
	UnsafeSysctls []string
	// AppArmor tells that the kernel enforces AppArmor profiles.
	AppArmor bool
}

// safeSysctls are namespaced, and what a pod sets there no other pod on the node feels.
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
	"net.ipv4.tcp_rmem",
	"net.ipv4.tcp_syncookies",
	"net.ipv4.tcp_wmem",
}

// AdmitHost refuses a pod that asks for what the machine cannot enforce or its settings do not allow.
func AdmitHost(pod *corev1.Pod, host Host) *Rejection {
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			if why := forbiddenSysctl(s.Name, &pod.Spec, host.UnsafeSysctls); why != "" {
				return &Rejection{reasonSysctlForbidden, "forbidden sysctl: " + why}
			}
		}
	}
	if !host.AppArmor && wantsAppArmor(pod) {
		return &Rejection{reasonAppArmor, "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
	}
	return nil
}

// forbiddenSysctl says why a pod may not set a sysctl; empty where it may. The node's own namespaces stay as they are.
func forbiddenSysctl(name string, spec *corev1.PodSpec, unsafe []string) string {
	name = sysctl.NormalizeName(name)
	for _, pattern := range slices.Concat(safeSysctls, unsafe) {
		ns, start, open := sysctl.GetNamespace(pattern)
		switch {
		case start != name && !(open && strings.HasPrefix(name, start)), ns == sysctl.UnknownNamespace:
			continue // what belongs to no namespace of the pod would change the node
		case ns == sysctl.IPCNamespace && spec.HostIPC, ns == sysctl.NetNamespace && spec.HostNetwork:
			return fmt.Sprintf("%q not allowed with host %s enabled", name, ns)
		}
		return ""
	}
	return fmt.Sprintf("%q not allowlisted", name)
}

// wantsAppArmor: a profile of the pod or of any of its containers wants to be enforced.
func wantsAppArmor(pod *corev1.Pod) bool {
	asks := func(p *corev1.AppArmorProfile) bool {
		return p != nil && p.Type != corev1.AppArmorProfileTypeUnconfined
	}
	if sc := pod.Spec.SecurityContext; sc != nil && asks(sc.AppArmorProfile) {
		return true
	}
	inContainer := func(sc *corev1.SecurityContext) bool { return sc != nil && asks(sc.AppArmorProfile) }
	for i := range pod.Spec.EphemeralContainers {
		if inContainer(pod.Spec.EphemeralContainers[i].SecurityContext) {
			return true
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if inContainer(c.SecurityContext) {
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
