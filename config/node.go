package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/kubelet/pkg/apis"
)

// readNode parses the flags about the Node object.
func readNode(flags flagValues) (n Node, err error) {
	if n.Name, err = nodeName(flags.text("hostname-override")); err != nil {
		return n, err
	}
	if n.IPs, err = nodeIPs(flags.text("node-ip")); err != nil {
		return n, err
	}
	n.Labels, _ = flags["node-labels"].(map[string]string)
	if err := checkLabels(n.Labels); err != nil {
		return n, err
	}
	cloud := flags.text("cloud-provider")
	if cloud != "" && cloud != "external" {
		return n, fmt.Errorf(`--cloud-provider: %q has been removed from Kubernetes; want "external" or nothing`, cloud)
	}
	n.ExternalCloud = cloud == "external"
	return n, nil
}

// nodeName returns the name of the Node object: --hostname-override or the host name, in lower case.
func nodeName(override string) (string, error) {
	name, source := strings.TrimSpace(override), "--hostname-override"
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("find the machine's host name: %w", err)
		}
		name, source = strings.TrimSpace(host), "the machine's host name"
	}
	name = strings.ToLower(name)
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return "", fmt.Errorf("%s %q cannot be the name of a node: %s; choose another one with --hostname-override",
			source, name, problems[0])
	}
	return name, nil
}

// nodeIPs parses --node-ip.
func nodeIPs(text string) ([]netip.Addr, error) {
	if text == "" {
		return nil, nil
	}
	var ips []netip.Addr
	for part := range strings.SplitSeq(text, ",") {
		ip, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("--node-ip: %q is not an IP address", part)
		}
		ips = append(ips, ip.Unmap())
	}
	switch {
	case len(ips) > 2 || len(ips) == 2 && ips[0].Is4() == ips[1].Is4():
		return nil, fmt.Errorf("--node-ip: %s is neither one address nor a pair of an IPv4 and an IPv6 address", text)
	case len(ips) == 2 && (ips[0].IsUnspecified() || ips[1].IsUnspecified()):
		return nil, errors.New("--node-ip: 0.0.0.0 and :: choose the family of a single address; " +
			"they cannot be part of a pair")
	}
	return ips, nil
}

func checkLabels(labels map[string]string) error {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if problems := validation.IsQualifiedName(k); len(problems) > 0 {
			return fmt.Errorf("--node-labels: %q is not a valid label key: %s", k, problems[0])
		}
		if problems := validation.IsValidLabelValue(labels[k]); len(problems) > 0 {
			return fmt.Errorf("--node-labels: %s: %q is not a valid label value: %s", k, labels[k], problems[0])
		}
		if !mayLabelItself(k) {
			return fmt.Errorf("--node-labels: a node must not set the label %s on itself; "+
				"in the domains kubernetes.io and k8s.io "+
				"only keys below kubelet.kubernetes.io/ and node.kubernetes.io/ and these are allowed: %s",
				k, strings.Join(apis.KubeletLabels(), ", "))
		}
	}
	return nil
}

// mayLabelItself reports whether a node may set this label on itself (NodeRestriction refuses all others).
func mayLabelItself(key string) bool {
	domain, _, qualified := strings.Cut(key, "/")
	within := func(of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }
	return !qualified || !within("kubernetes.io") && !within("k8s.io") || apis.IsKubeletLabel(key)
}
