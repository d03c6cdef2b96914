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

// filterChain is a chain of nodelet's own in the packet filter, and the rule that leads to it.
type filterChain struct {
	table, name string
	// add is how the rule is added (-A or -I) to the chain from; comment is its comment.
	add, from, comment string
}

var (
	// masqueradeChain contains the rules that give packets of pods to other networks the address of the node.
	masqueradeChain = filterChain{"nat", "NODELET-MASQ", "-A", "POSTROUTING", "nodelet: pods to the outside"}
	// forwardChain contains the rules that let packets of pods pass.
	forwardChain = filterChain{"filter", "NODELET-FORWARD", "-I", "FORWARD", "nodelet: pods"}
)

// jump is the rule that leads to the chain.
func (c filterChain) jump() []string {
	return []string{c.from, "-m", "comment", "--comment", c.comment, "-j", c.name}
}

// set makes the chain contain these rules, and makes the rule that leads to it. A rule is what follows -A CHAIN.
func (c filterChain) set(ctx context.Context, tool iptables.Tool, rules []string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n:%s - [0:0]\n", c.table, c.name) // creates or empties it
	for _, r := range rules {
		fmt.Fprintf(&b, "-A %s %s\n", c.name, r)
	}
	b.WriteString("COMMIT\n")
	if err := tool.Restore(ctx, b.String()); err != nil {
		return err
	}
	return tool.Ensure(ctx, c.table, c.add, c.jump()...)
}

// remove removes the chain and the rule that leads to it, if it exists.
func (c filterChain) remove(ctx context.Context, tool iptables.Tool) error {
	_, found, err := tool.Look(ctx, c.table, "-S", c.name)
	if err != nil || !found {
		return err
	}
	_, _ = tool.Run(ctx, c.table, append([]string{"-D"}, c.jump()...)...) // if it is still there, -X fails
	_, err = tool.Run(ctx, c.table, "-F", c.name)
	if err == nil {
		_, err = tool.Run(ctx, c.table, "-X", c.name)
	}
	return err
}

// Private are the ranges in which pod addresses are usually routable: RFC 1918, 6598, 3927, 4193 and 4291.
var Private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fe80::/10"),
}

// Masquerade gives packets from the pod CIDRs the address of the node, unless they go to one of the ranges in except,
// to pods of this node or to a multicast group. One rule for all pods replaces two for each. It is idempotent, and
// removes the rules for ranges that the node does not have any more.
func Masquerade(ctx context.Context, ranges, except []netip.Prefix) error {
	return eachFamily(ranges, func(tool iptables.Tool, mine []netip.Prefix) error {
		if len(mine) == 0 {
			return masqueradeChain.remove(ctx, tool)
		}
		six := mine[0].Addr().Is6()
		multicast := "224.0.0.0/4"
		if six {
			multicast = "ff00::/8"
		}
		var rules []string
		for _, r := range slices.Concat(mine, ofFamily(except, six)) {
			rules = append(rules, fmt.Sprintf("-d %s -j RETURN", r))
		}
		rules = append(rules, fmt.Sprintf("-d %s -j RETURN", multicast))
		for _, r := range mine {
			rules = append(rules, fmt.Sprintf("-s %s -j MASQUERADE", r))
		}
		return masqueradeChain.set(ctx, tool, rules)
	})
}

// AllowForwarding lets packets from and to the pod CIDRs pass a firewall that drops forwarded packets by default. It
// is idempotent, removes the rules for ranges that the node does not have any more, and makes none in another
// firewall. Docker makes the firewall so when it starts, perhaps long after the pods got their networks.
func AllowForwarding(ctx context.Context, ranges []netip.Prefix) error {
	return eachFamily(ranges, func(tool iptables.Tool, mine []netip.Prefix) error {
		if len(mine) == 0 {
			return forwardChain.remove(ctx, tool)
		}
		if drops, err := dropsForwarded(ctx, tool); err != nil || !drops {
			return err
		}
		var rules []string
		for _, r := range mine {
			rules = append(rules, fmt.Sprintf("-s %s -j ACCEPT", r), fmt.Sprintf("-d %s -j ACCEPT", r))
		}
		return forwardChain.set(ctx, tool, rules)
	})
}

// RemoveGenerated removes what is left of the generated network: its bridges without sandboxes, and its rules when it
// has no other bridge. It reports whether nothing is left.
func RemoveGenerated(ctx context.Context) (gone bool, err error) {
	used, err := earlierRanges("")
	if err != nil || len(used) > 0 {
		return false, err
	}
	err = errors.Join(Masquerade(ctx, nil, nil), AllowForwarding(ctx, nil))
	return err == nil, err
}

// eachFamily calls do for IPv4 and IPv6, with the ranges of the family.
func eachFamily(ranges []netip.Prefix, do func(iptables.Tool, []netip.Prefix) error) error {
	return advised(errors.Join(do(iptables.IPv4, ofFamily(ranges, false)), do(iptables.IPv6, ofFamily(ranges, true))))
}

// dropsForwarded reports whether the node's firewall drops forwarded packets by default.
func dropsForwarded(ctx context.Context, tool iptables.Tool) (bool, error) {
	rules, _, err := tool.Look(ctx, "filter", "-S", "FORWARD")
	return strings.HasPrefix(rules, "-P FORWARD DROP"), err
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
