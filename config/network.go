package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// readNetwork parses the flags of the pod network, which the kubelet does not have.
func readNetwork(k *KubeletConfiguration, flags flagValues) (Network, error) {
	bins, _ := flags["cni-bin-dir"].([]string)
	n := Network{
		Mode: flags.text("network"), Conf: flags.text("cni-conf"), ConfDir: flags.text("cni-conf-dir"), BinDirs: bins,
		NetworksDir: flags.text("cni-networks-dir"),
	}
	if !slices.Contains([]string{"auto", "runtime", "agent"}, n.Mode) {
		return n, fmt.Errorf(`--network: %q is not one of runtime, agent, auto`, n.Mode)
	}
	var err error
	if n.CallTimeout, err = time.ParseDuration(flags.text("cni-call-timeout")); err != nil || n.CallTimeout <= 0 {
		return n, fmt.Errorf("--cni-call-timeout: %q is not a positive duration such as 1m", flags.text("cni-call-timeout"))
	}
	if n.CheckPeriod, err = time.ParseDuration(flags.text("cni-check-period")); err != nil || n.CheckPeriod < 0 {
		return n, fmt.Errorf("--cni-check-period: %q is not a duration such as 10m or 0s", flags.text("cni-check-period"))
	}
	outside, _ := flags["non-masquerade-cidr"].([]string)
	if n.NonMasquerade, err = prefixes(outside); err != nil {
		return n, fmt.Errorf("--non-masquerade-cidr: %w", err)
	}
	if k.PodCIDR != "" {
		if n.PodCIDRs, err = prefixes(strings.Split(k.PodCIDR, ",")); err != nil {
			return n, fmt.Errorf("podCIDR: %w", err)
		}
	}
	return n, nil
}

func prefixes(texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, t := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(t))
		if err != nil {
			return nil, fmt.Errorf("%q is not a CIDR such as 10.244.0.0/24", t)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}
