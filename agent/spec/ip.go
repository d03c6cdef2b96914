package spec

import "net/netip"

// isIPv6 reports whether ip is an IPv6 address; text that is not an address counts as IPv4.
func isIPv6(ip string) bool {
	addr, err := netip.ParseAddr(ip)
	return err == nil && addr.Unmap().Is6()
}

// sortPodIPs selects the addresses for the pod's status and environment from those that the runtime reports: the
// first one of the same IP family as the node's primary address, then the first one of the other family. Addresses
// are in canonical form. Text that is not an address is dropped.
func sortPodIPs(hostIPs, podIPs []string) []string {
	wantV6 := len(hostIPs) > 0 && isIPv6(hostIPs[0])
	var primary, secondary string
	for _, ip := range podIPs {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			continue
		}
		addr = addr.Unmap().WithZone("")
		switch {
		case addr.Is6() == wantV6 && primary == "":
			primary = addr.String()
		case addr.Is6() != wantV6 && secondary == "":
			secondary = addr.String()
		}
	}
	var out []string
	for _, ip := range []string{primary, secondary} {
		if ip != "" {
			out = append(out, ip)
		}
	}
	return out
}
