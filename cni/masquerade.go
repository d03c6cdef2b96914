package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
)

// masqueradeChain contains the rules that give packets of pods to other networks the address of the node.
const masqueradeChain = "NODELET-MASQ"

// Private are the ranges in which pod addresses are usually routable: RFC 1918, 6598, 3927, 4193 and 4291.
var Private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fe80::/10"),
}

// Masquerade gives packets from the pod ranges the address of the node, unless they go to one of the ranges in except,
// to pods of this node or to a multicast group. One rule for all pods replaces two for each. It is idempotent.
func Masquerade(ctx context.Context, ranges, except []netip.Prefix) error {
	var errs []error
	for _, six := range []bool{false, true} {
		mine := ofFamily(ranges, six)
		if len(mine) == 0 {
			continue
		}
		errs = append(errs, masquerade(ctx, six, mine, ofFamily(except, six)))
	}
	return errors.Join(errs...)
}

func masquerade(ctx context.Context, six bool, ranges, except []netip.Prefix) error {
	tool, multicast := "iptables", "224.0.0.0/4"
	if six {
		tool, multicast = "ip6tables", "ff00::/8"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*nat\n:%s - [0:0]\n", masqueradeChain) // creates or empties it
	for _, r := range append(append([]netip.Prefix{}, ranges...), except...) {
		fmt.Fprintf(&b, "-A %s -d %s -j RETURN\n", masqueradeChain, r)
	}
	fmt.Fprintf(&b, "-A %s -d %s -j RETURN\n-A %s -j MASQUERADE\nCOMMIT\n", masqueradeChain, multicast, masqueradeChain)
	if err := iptables(ctx, b.String(), tool+"-restore", "--noflush", "-w", "10"); err != nil {
		return err
	}
	for _, r := range ranges {
		err := ensureRule(ctx, tool, "nat", "-A", "POSTROUTING", "-s", r.String(), "-m", "comment", "--comment",
			"nodelet: pods to the outside", "-j", masqueradeChain)
		if err != nil {
			return err
		}
	}
	return nil
}

// ensureRule adds a rule, by -A or -I, that is not there yet.
func ensureRule(ctx context.Context, tool, table, add string, rule ...string) error {
	if iptables(ctx, "", tool, append([]string{"-w", "10", "-t", table, "-C"}, rule...)...) == nil {
		return nil
	}
	return iptables(ctx, "", tool, append([]string{"-w", "10", "-t", table, add}, rule...)...)
}

// AllowForwarding lets packets from and to the pod ranges pass a firewall that drops forwarded packets by default. It
// is idempotent, and does nothing with another firewall. Docker makes the firewall so when it starts, perhaps long
// after the pods got their networks.
func AllowForwarding(ctx context.Context, ranges []netip.Prefix) error {
	for _, r := range ranges {
		tool := "iptables"
		if r.Addr().Is6() {
			tool = "ip6tables"
		}
		if !dropsForwarded(ctx, tool) {
			continue
		}
		for _, end := range []string{"-s", "-d"} {
			err := ensureRule(ctx, tool, "filter", "-I", "FORWARD", end, r.String(), "-m", "comment", "--comment",
				"nodelet: pods", "-j", "ACCEPT")
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func ofFamily(all []netip.Prefix, six bool) []netip.Prefix {
	var some []netip.Prefix
	for _, p := range all {
		if p.Addr().Is6() == six {
			some = append(some, p)
		}
	}
	return some
}

func iptables(ctx context.Context, stdin, tool string, args ...string) error {
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("let packets of pods pass: %w; install iptables, or configure your own network with --cni-conf",
			err)
	}
	if err != nil {
		return fmt.Errorf("let packets of pods pass: %s: %w: %s", tool, err, excerpt(out))
	}
	return nil
}

// dropsForwarded reports whether the node's firewall drops forwarded packets by default.
func dropsForwarded(ctx context.Context, tool string) bool {
	out, err := exec.CommandContext(ctx, tool, "-w", "10", "-S", "FORWARD").Output()
	return err == nil && strings.HasPrefix(string(out), "-P FORWARD DROP")
}
