package cni

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
)

// ownBridge is the name of the bridges of generated networks, before their number.
const ownBridge = "nodelet"

// maxBridges bounds the bridges of generated networks.
const maxBridges = 8

// bridge is a bridge of a generated network. Sandboxes keep the bridge to which they were attached, with the address of
// their gateway, when the node gets other pod CIDRs. The network of the new ranges has another bridge then.
type bridge struct {
	index  int
	ranges []netip.Prefix
	used   bool // a sandbox is attached to it
}

// serves reports whether the bridge has an address in one of the ranges.
func (b bridge) serves(ranges []netip.Prefix) bool {
	return slices.ContainsFunc(b.ranges, func(r netip.Prefix) bool { return slices.Contains(ranges, r) })
}

// bridges returns the bridges of generated networks that exist, by name.
func bridges() (map[string]bridge, error) {
	used, err := masters()
	if err != nil {
		return nil, fmt.Errorf("list the ports of bridges: %w", err)
	}
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the network devices: %w", err)
	}
	found := map[string]bridge{}
	for i := range all {
		if !slices.Contains(bridgeNames(), all[i].Name) {
			continue
		}
		b := bridge{index: all[i].Index, used: used[all[i].Index]}
		addrs, err := all[i].Addrs()
		if err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", all[i].Name, err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
				b.ranges = append(b.ranges, p.Masked())
			}
		}
		found[all[i].Name] = b
	}
	return found, nil
}

func bridgeNames() (all []string) {
	for i := range maxBridges {
		all = append(all, fmt.Sprint(ownBridge, i))
	}
	return all
}

// masters returns the indexes of the devices that have others as ports.
func masters() (map[int]bool, error) {
	dump, err := syscall.NetlinkRIB(syscall.RTM_GETLINK, syscall.AF_UNSPEC)
	if err != nil {
		return nil, os.NewSyscallError("netlinkrib", err)
	}
	messages, err := syscall.ParseNetlinkMessage(dump)
	if err != nil {
		return nil, err
	}
	found := map[int]bool{}
	for i := range messages {
		if messages[i].Header.Type != syscall.RTM_NEWLINK {
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&messages[i])
		if err != nil {
			return nil, err
		}
		for _, a := range attributes {
			if a.Attr.Type == syscall.IFLA_MASTER && len(a.Value) == 4 {
				found[int(binary.NativeEndian.Uint32(a.Value))] = true
			}
		}
	}
	return found, nil
}

// chooseBridge returns the name of the bridge for the pod CIDRs: the one that has them already, or else one to which no
// sandbox is attached: current, for which an ADD may be under way, or the first.
func chooseBridge(ranges []netip.Prefix, current string) (string, error) {
	all, err := bridges()
	if err != nil {
		return "", err
	}
	free := ""
	for _, name := range bridgeNames() {
		b, exists := all[name]
		if exists && (b.serves(ranges) || name == current && len(b.ranges) == 0) {
			return name, nil // without an address: the first ADD is under way
		}
		if !b.used && (free == "" || name == current) {
			free = name
		}
	}
	if free == "" {
		return "", errors.New("all bridges are used by pods of earlier pod CIDRs: delete those pods")
	}
	return free, nil
}

// earlierRanges returns the pod CIDRs of the sandboxes that are attached to other bridges than current. It removes the
// bridges to which none is attached any more: their ranges may belong to other nodes now.
func earlierRanges(current string) (ranges []netip.Prefix, err error) {
	all, err := bridges()
	if err != nil {
		return nil, err
	}
	var errs []error
	for name, b := range all {
		switch {
		case name == current || len(b.ranges) == 0:
		case b.used:
			ranges = append(ranges, b.ranges...)
		default:
			if err := b.remove(); err != nil {
				errs = append(errs, fmt.Errorf("remove bridge %s: %w", name, err))
			}
		}
	}
	return ranges, errors.Join(errs...)
}

// remove removes the bridge, unless a sandbox has just been attached to it.
func (b bridge) remove() error {
	used, err := masters()
	if err != nil || used[b.index] {
		return err
	}
	return deleteLink(b.index)
}
