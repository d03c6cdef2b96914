package podstatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// addresses fills in the addresses of the pod and its node. A pod on the host network has those of the node. They stay
// as they were while the node's are not known, and those of other pods while there is no ready sandbox.
func (b *builder) addresses() {
	st, old := b.st, b.Reported
	st.HostIP, st.HostIPs = old.HostIP, old.HostIPs
	st.PodIPs = old.PodIPs
	ips := b.Node.HostIPs
	if len(ips) > 0 {
		st.HostIP, st.HostIPs = ips[0], listed(old.HostIPs, ips)
	}
	switch onHost := b.Pod.Spec.HostNetwork; {
	case onHost && len(ips) > 0:
		st.PodIPs = listed(old.PodIPs, ips)
	case !onHost && len(b.Sandboxes) > 0 && b.Sandboxes[0].Ready:
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
