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
)

// UsageError is an error in the command line itself: an unknown command or flag, or a value that a flag cannot have.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

func (e *UsageError) Unwrap() error { return e.Err }

// Load reads the command line (without the name of the program) and the files it names. An error is written for the
// user: it names the file or flag, the field, the value, and what is allowed; it lists all problems of one file. It is
// a *UsageError if the command line is wrong, and a *TextRequest if the command line asks for --help, --help-all or
// --version.
func Load(args []string) (*Config, error) {
	flags, err := parseFlags(args)
	var text *TextRequest
	if err != nil && !errors.As(err, &text) {
		err = &UsageError{err}
	}
	if err != nil {
		return nil, err
	}
	tree, err := readTrees(flags.text("config"), flags.text("config-dir"))
	if err != nil {
		return nil, err
	}
	kubelet, err := decode(tree)
	if err != nil {
		return nil, err
	}
	if gates, ok := flags["feature-gates"].(map[string]bool); ok {
		kubelet.FeatureGates = mergedGates(kubelet.FeatureGates, gates) // some defaults depend on them
	}
	setDefaults(kubelet)
	if err := applyFlags(kubelet, flags); err != nil {
		return nil, err
	}
	if err := validate(kubelet); err != nil {
		return nil, err
	}
	c, err := build(kubelet, flags)
	if err != nil {
		return nil, err
	}
	written := func(field, flag string) bool {
		_, byFlag := flags[flag]
		return byFlag || isSet(tree, field)
	}
	c.Node.Kernel = buildKernel(kubelet, written)
	limitPulls(&c.Images, kubelet, written)
	c.Flags = shownFlags(flags)
	c.AcceptMissing, _ = flags["accept-missing"].([]string)
	c.Warnings = warnings(kubelet, tree, flags)
	return c, nil
}

// decode converts a checked tree to a configuration.
func decode(tree map[string]any) (*KubeletConfiguration, error) {
	c := &KubeletConfiguration{}
	for name, v := range tree {
		if name == "apiVersion" || name == "kind" {
			continue // checked in each file, set by the defaults
		}
		if err := setField(c, name, v); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// warnings returns the written settings without effect.
func warnings(c *KubeletConfiguration, tree map[string]any, flags flagValues) []Warning {
	var all []Warning
	for _, k := range knobs {
		value, byFlag := flags[k.flag]
		if byFlag = byFlag && k.flag != ""; !byFlag && k.field != "" {
			parent, name := descend(tree, k.field)
			value = parent[name]
		}
		if verdict, _ := k.verdict(); verdict != NoEffect || k.asksForNothing(value) {
			continue
		}
		w := Warning{Field: k.field, Text: noEffectText, Breaks: breaks[k.field]}
		if byFlag {
			w.Flag = k.flag
		}
		if k.help != "" {
			w.Text += ": " + k.help
		}
		all = append(all, w)
	}
	if root := flags.text("root-dir"); root != defaultRoot && flags["cert-dir"] == nil && flags.text("kubeconfig") != "" {
		all = append(all, Warning{Flag: "root-dir", Text: "does not move the certificates: they stay in " +
			flags.text("cert-dir") + ", see --cert-dir"})
	}
	return append(all, gateWarnings(c.FeatureGates)...)
}

// defaultRoot is the kubelet's root directory.
const defaultRoot = "/var/lib/kubelet"

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

// kubernetesLabels are the labels in Kubernetes' domains that a node may set on itself (NodeRestriction refuses all
// others).
var kubernetesLabels = []string{
	"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch", "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
	"topology.kubernetes.io/zone", "topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone",
	"failure-domain.beta.kubernetes.io/region", "node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type",
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
				k, strings.Join(kubernetesLabels, ", "))
		}
	}
	return nil
}

func mayLabelItself(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	within := func(of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }
	if !ok || !within("kubernetes.io") && !within("k8s.io") {
		return true
	}
	return within("kubelet.kubernetes.io") || within("node.kubernetes.io") || slices.Contains(kubernetesLabels, key)
}
