package spec

import "net/netip"

// isIPv6 tells the family of an address; text that is no address counts as IPv4.
func isIPv6(ip string) bool {
	addr, err := netip.ParseAddr(ip)
	return err == nil && addr.Unmap().Is6()
}

// SortPodIPs picks the addresses that go into the pod's status and environment from those the runtime reports: the first
// of the family of the node's primary address, then the first of the other family. Addresses are written canonically;
// text that is no address is dropped.
func SortPodIPs(hostIPs, podIPs []string) []string {
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
