package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/nodelet/nodelet/host/iptables"
)

// masqueradeChain contains the rules that give packets of pods to other networks the address of the node.
const masqueradeChain = "NODELET-MASQ"

// Private are the ranges in which pod addresses are usually routable: RFC 1918, 6598, 3927, 4193 and 4291.
var Private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fe80::/10"),
}

// Masquerade gives packets from the pod CIDRs the address of the node, unless they go to one of the ranges in except,
// to pods of this node or to a multicast group. One rule for all pods replaces two for each. It is idempotent, and
// removes the rules for ranges that the node does not have any more, if it still has others of their family.
func Masquerade(ctx context.Context, ranges, except []netip.Prefix) error {
	var errs []error
	for _, six := range []bool{false, true} {
		if mine := ofFamily(ranges, six); len(mine) > 0 {
			errs = append(errs, masquerade(ctx, six, mine, ofFamily(except, six)))
		}
	}
	return advised(errors.Join(errs...))
}

func masquerade(ctx context.Context, six bool, ranges, except []netip.Prefix) error {
	multicast := "224.0.0.0/4"
	if six {
		multicast = "ff00::/8"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*nat\n:%s - [0:0]\n", masqueradeChain) // creates or empties it
	for _, r := range append(append([]netip.Prefix{}, ranges...), except...) {
		fmt.Fprintf(&b, "-A %s -d %s -j RETURN\n", masqueradeChain, r)
	}
	fmt.Fprintf(&b, "-A %s -d %s -j RETURN\n", masqueradeChain, multicast)
	for _, r := range ranges {
		fmt.Fprintf(&b, "-A %s -s %s -j MASQUERADE\n", masqueradeChain, r)
	}
	b.WriteString("COMMIT\n")
	tool := toolOf(six)
	if err := tool.Restore(ctx, b.String()); err != nil {
		return err
	}
	return tool.Ensure(ctx, "nat", "-A", "POSTROUTING", "-m", "comment", "--comment", "nodelet: pods to the outside",
		"-j", masqueradeChain)
}

// AllowForwarding lets packets from and to the pod CIDRs pass a firewall that drops forwarded packets by default. It
// is idempotent, and does nothing with another firewall. Docker makes the firewall so when it starts, perhaps long
// after the pods got their networks.
func AllowForwarding(ctx context.Context, ranges []netip.Prefix) error {
	for _, r := range ranges {
		tool := toolOf(r.Addr().Is6())
		if !dropsForwarded(ctx, tool) {
			continue
		}
		for _, end := range []string{"-s", "-d"} {
			err := tool.Ensure(ctx, "filter", "-I", "FORWARD", end, r.String(), "-m", "comment", "--comment",
				"nodelet: pods", "-j", "ACCEPT")
			if err != nil {
				return advised(err)
			}
		}
	}
	return nil
}

// dropsForwarded reports whether the node's firewall drops forwarded packets by default.
func dropsForwarded(ctx context.Context, tool iptables.Tool) bool {
	out, err := tool.Run(ctx, "filter", "-S", "FORWARD")
	return err == nil && strings.HasPrefix(out, "-P FORWARD DROP")
}

func toolOf(six bool) iptables.Tool {
	if six {
		return iptables.IPv6
	}
	return iptables.IPv4
}

func ofFamily(all []netip.Prefix, six bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return p.Addr().Is6() != six })
}

// advised adds to an error of iptables what it prevents and what to do.
func advised(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("let packets of pods pass: %w; install iptables, or configure your own network with --cni-conf",
			err)
	}
	return fmt.Errorf("let packets of pods pass: %w", err)
}
