package podstatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// addresses fills in the addresses of the pod and its node. A pod without a ready sandbox keeps the address it had.
func (b *builder) addresses() {
	st, old := b.st, b.Reported
	st.HostIP, st.HostIPs = old.HostIP, old.HostIPs
	if ips := b.Node.HostIPs; len(ips) > 0 {
		st.HostIP, st.HostIPs = ips[0], listed(old.HostIPs, ips[:min(2, len(ips))])
	}
	if b.Pod.Spec.HostNetwork {
		b.hostAddresses()
		return
	}
	st.PodIPs = old.PodIPs
	if len(b.Sandboxes) > 0 && b.Sandboxes[0].Ready {
		st.PodIPs = listed(old.PodIPs, podutil.SortIPs(b.Sandboxes[0].IPs, b.Node.IPv6First))
	}
	if len(st.PodIPs) > 0 {
		st.PodIP = st.PodIPs[0].IP
	}
}

// listed returns addresses as a status lists them: as the old list, if they are the same.
func listed[T corev1.PodIP | corev1.HostIP](old []T, ips []string) []T {
	if slices.EqualFunc(old, ips, func(a T, ip string) bool { return a == T(corev1.PodIP{IP: ip}) }) {
		return old
	}
	var all []T
	for _, ip := range ips {
		all = append(all, T(corev1.PodIP{IP: ip}))
	}
	return all
}

// hostAddresses fills in the node's addresses for a pod on the host network. The first address does not change once
// it is set; the second one may be added later.
func (b *builder) hostAddresses() {
	st := b.st
	st.PodIP, st.PodIPs = b.Reported.PodIP, b.Reported.PodIPs
	ips := b.Node.HostIPs
	if st.PodIP == "" && len(ips) > 0 {
		st.PodIP, st.PodIPs = ips[0], []corev1.PodIP{{IP: ips[0]}}
	}
	if len(ips) == 2 && len(st.PodIPs) == 1 && podutil.IsIPv6(st.PodIPs[0].IP) != podutil.IsIPv6(ips[1]) {
		st.PodIPs = append(slices.Clip(st.PodIPs), corev1.PodIP{IP: ips[1]})
	}
}
