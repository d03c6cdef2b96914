package spec

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestDefaultSysctls checks that the sysctls of the node's configuration are set in the namespaces that a pod has for
// itself, and its own count before them.
func TestDefaultSysctls(t *testing.T) {
	node := testNode(nodeFacts{})
	node.DefaultSysctls = map[string]string{
		"net.ipv4.ip_forward":             "1",
		"net/ipv4/conf/eth0.1/forwarding": "1",
		"kernel.sem":                      "1 2 3 4",
		"fs.mqueue.msg_max":               "5",
		"kernel.domainname":               "d",
		"user.max_net_namespaces":         "6",
	}
	yes, no := true, false
	for name, c := range map[string]struct {
		change func(*corev1.PodSpec)
		want   map[string]string
	}{
		"own namespaces": {
			func(*corev1.PodSpec) {},
			map[string]string{"net.ipv4.ip_forward": "1", "net.ipv4.conf.eth0/1.forwarding": "1", "kernel.sem": "1 2 3 4",
				"fs.mqueue.msg_max": "5", "kernel.domainname": "d"},
		},
		"host network": {
			func(s *corev1.PodSpec) { s.HostNetwork = true },
			map[string]string{"kernel.sem": "1 2 3 4", "fs.mqueue.msg_max": "5"},
		},
		"host IPC, own users": {
			func(s *corev1.PodSpec) { s.HostIPC, s.HostUsers = true, &no },
			map[string]string{"net.ipv4.ip_forward": "1", "net.ipv4.conf.eth0/1.forwarding": "1", "kernel.domainname": "d",
				"user.max_net_namespaces": "6"},
		},
		"set by the pod": {
			func(s *corev1.PodSpec) {
				s.HostIPC, s.HostUsers = true, &yes
				s.SecurityContext = &corev1.PodSecurityContext{
					Sysctls: []corev1.Sysctl{{Name: "net/ipv4/ip_forward", Value: "0"}},
				}
			},
			map[string]string{"net.ipv4.ip_forward": "0", "net.ipv4.conf.eth0/1.forwarding": "1", "kernel.domainname": "d"},
		},
	} {
		pod := testPod()
		c.change(&pod.Spec)
		if got, err := podSysctls(pod, node); err != nil || !maps.Equal(got, c.want) {
			t.Errorf("%s: got %v (%v), want %v", name, got, err, c.want)
		}
	}
}
