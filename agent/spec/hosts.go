package spec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

const etcHosts = "/etc/hosts"

// The content of a managed /etc/hosts, equal to the kubelet's, because users and tests rely on it. The IPv6 lines are
// those of Debian.
const (
	hostsHeader        = "# Kubernetes-managed hosts file.\n"
	hostsHeaderHostNet = "# Kubernetes-managed hosts file (host network).\n"
	hostsLocal         = "127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n"
	hostsAliases = "\n# Entries added by HostAliases.\n"
)

// HostsFile returns the content of the pod's /etc/hosts. podIPs are all addresses of its sandbox. nodeHosts is the
// content of the node's own file. A pod on the host network gets a copy of it; other pods do not use it.
func HostsFile(pod *corev1.Pod, node *Node, podIPs []string, nodeHosts []byte) ([]byte, error) {
	var out strings.Builder
	if pod.Spec.HostNetwork {
		out.WriteString(hostsHeaderHostNet)
		out.Write(nodeHosts)
	} else {
		host, domain, err := hostname(pod, node.ClusterDomain)
		if err != nil {
			return nil, err
		}
		names := host
		if domain != "" {
			names = host + "." + domain + "\t" + host
		}
		out.WriteString(hostsHeader + hostsLocal)
		for _, ip := range podIPs {
			out.WriteString(ip + "\t" + names + "\n")
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		out.WriteString(hostsAliases)
	}
	for i, alias := range pod.Spec.HostAliases {
		if err := checkAlias(alias); err != nil {
			return nil, fmt.Errorf("spec.hostAliases[%d]: %w", i, err)
		}
		out.WriteString(alias.IP + "\t" + strings.Join(alias.Hostnames, "\t") + "\n")
	}
	return []byte(out.String()), nil
}

func checkAlias(alias corev1.HostAlias) error {
	// This is no stricter than the API, which accepts old spellings such as 127.000.0.1. But it rejects text that
	// could add a line to the file.
	if alias.IP == "" || strings.Trim(alias.IP, "0123456789abcdefABCDEF.:") != "" {
		return fmt.Errorf("ip %q is not an IP address", alias.IP)
	}
	for _, name := range alias.Hostnames {
		if msgs := validation.IsDNS1123Subdomain(name); len(msgs) > 0 {
			return fmt.Errorf("host name %q: %s", name, strings.Join(msgs, "; "))
		}
	}
	return nil
}
