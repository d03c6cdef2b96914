package spec

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// The limits of resolvers. A longer list is truncated, with a warning.
const (
	maxNameservers  = 3
	maxSearchPaths  = 32
	maxSearchLength = 2048
)

// dnsConfig returns the pod's resolver configuration: the settings that its dnsPolicy selects, merged with its
// dnsConfig. The warnings say what was left out, and what is missing in the configuration of the node.
func dnsConfig(pod *corev1.Pod, node *Node) (*runtimeapi.DNSConfig, []Warning, error) {
	config, warnings, err := dnsBase(pod, node)
	if err != nil {
		return nil, nil, err
	}
	if own := pod.Spec.DNSConfig; own != nil {
		config.Servers = unique(config.Servers, own.Nameservers)
		config.Searches = unique(config.Searches, own.Searches)
		for _, option := range own.Options {
			text := option.Name
			if option.Value != nil && *option.Value != "" {
				text += ":" + *option.Value
			}
			config.Options = setOption(config.Options, text)
		}
	}
	if !pod.Spec.HostNetwork {
		warnings = append(warnings, keepReachable(config)...)
	}
	return config, append(warnings, cutToLimits(config)...), nil
}

func dnsBase(pod *corev1.Pod, node *Node) (*runtimeapi.DNSConfig, []Warning, error) {
	switch policy := pod.Spec.DNSPolicy; policy {
	case corev1.DNSNone:
		return &runtimeapi.DNSConfig{}, nil, nil
	case corev1.DNSDefault:
		return hostDNS(node), nil, nil
	case corev1.DNSClusterFirst, "":
		if pod.Spec.HostNetwork {
			return hostDNS(node), nil, nil
		}
	case corev1.DNSClusterFirstWithHostNet:
	default:
		return nil, nil, fmt.Errorf("unknown spec.dnsPolicy %q", policy)
	}
	if len(node.ClusterDNS) == 0 {
		return hostDNS(node), []Warning{{
			Reason: "MissingClusterDNS",
			Message: fmt.Sprintf("pod: %q. kubelet does not have ClusterDNS IP configured and cannot create Pod using "+
				"%q policy. Falling back to %q policy.", podutil.Text(pod), corev1.DNSClusterFirst, corev1.DNSDefault),
		}}, nil
	}
	return &runtimeapi.DNSConfig{
		Servers:  slices.Clone(node.ClusterDNS),
		Searches: clusterSearch(pod.Namespace, node),
		Options:  []string{"ndots:5"},
	}, nil, nil
}

// hostDNS returns the DNS settings of the node. Without a resolv.conf they name a resolver on the local machine: if
// they were empty, the runtime would use /etc/resolv.conf instead.
func hostDNS(node *Node) *runtimeapi.DNSConfig {
	if !node.NoResolvConf {
		return &runtimeapi.DNSConfig{
			Servers:  slices.Clone(node.Resolv.Nameservers),
			Searches: slices.Clone(node.Resolv.Search),
			Options:  slices.Clone(node.Resolv.Options),
		}
	}
	config := &runtimeapi.DNSConfig{Searches: []string{"."}}
	for _, ip := range node.HostIPs {
		if podutil.IsIPv6(ip) {
			config.Servers = append(config.Servers, "::1")
		} else {
			config.Servers = append(config.Servers, "127.0.0.1")
		}
	}
	if len(config.Servers) == 0 {
		config.Servers = []string{"127.0.0.1"}
	}
	return config
}

// keepReachable removes the nameservers that a pod with a network of its own cannot reach. If no other is left it
// keeps them, with a warning: some resolvers do not start without a nameserver, such as CoreDNS.
func keepReachable(config *runtimeapi.DNSConfig) []Warning {
	reachable := slices.DeleteFunc(slices.Clone(config.Servers), ofOneInterface)
	if len(reachable) == 0 && len(config.Servers) > 0 {
		return []Warning{{
			Reason: "DNSConfigForming",
			Message: "the nameservers are valid on one network interface of the node only, so the pod cannot reach them: " +
				strings.Join(config.Servers, " "),
		}}
	}
	config.Servers = reachable
	return nil
}

// ofOneInterface reports whether the address of a nameserver is valid on one network interface of the node only, for
// example fe80::1%eth0. A pod's network has no such interface.
func ofOneInterface(server string) bool {
	addr, err := netip.ParseAddr(server)
	return err == nil && addr.Zone() != ""
}

func clusterSearch(namespace string, node *Node) []string {
	domain := node.ClusterDomain
	if domain == "" {
		return slices.Clone(node.Resolv.Search)
	}
	return unique([]string{namespace + ".svc." + domain, "svc." + domain, domain}, node.Resolv.Search)
}

// cutToLimits removes what exceeds the limits of resolvers, and returns the kubelet's warning for each list that it
// shortens.
func cutToLimits(config *runtimeapi.DNSConfig) []Warning {
	var warnings []Warning
	if len(config.Servers) > maxNameservers {
		config.Servers = config.Servers[:maxNameservers]
		warnings = append(warnings, Warning{
			Reason: "DNSConfigForming",
			Message: "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: " +
				strings.Join(config.Servers, " "),
		})
	}
	if kept := cutSearch(config.Searches); len(kept) < len(config.Searches) {
		config.Searches = kept
		warnings = append(warnings, Warning{
			Reason: "DNSConfigForming",
			Message: "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " +
				strings.Join(kept, " "),
		})
	}
	return warnings
}

// cutSearch returns the first domains that fit on a search line. It drops each domain that is too long, because some
// resolvers abort on such a domain.
func cutSearch(domains []string) []string {
	if len(domains) > maxSearchPaths {
		domains = domains[:maxSearchPaths]
	}
	var kept []string
	length := -1 // no space before the first
	for _, domain := range domains {
		if len(domain) > validation.DNS1123SubdomainMaxLength {
			continue
		}
		length += 1 + len(domain)
		if length > maxSearchLength {
			break
		}
		kept = append(kept, domain)
	}
	return kept
}

// unique concatenates both lists and keeps the first of equal entries.
func unique(a, b []string) []string {
	var out []string
	for _, s := range slices.Concat(a, b) {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
