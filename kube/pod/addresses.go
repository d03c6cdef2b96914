package pod

import (
	"net/netip"
	"slices"
)

// IsIPv6 reports whether ip is an IPv6 address.
func IsIPv6(ip string) bool {
	addr, err := netip.ParseAddr(ip)
	return err == nil && addr.Unmap().Is6()
}

// IPs returns the first address of each IP family, in canonical form. Text that is not an address, or has a zone, which
// the API does not take, does not count.
func IPs(all []string) []string {
	var ips []string
	for _, text := range all {
		ip, err := netip.ParseAddr(text)
		sameFamily := func(other string) bool { return IsIPv6(other) == IsIPv6(text) }
		if err == nil && ip.Zone() == "" && !slices.ContainsFunc(ips, sameFamily) {
			ips = append(ips, ip.Unmap().String())
		}
	}
	return ips
}

// SortIPs returns the IPs among all, that of the named family first.
func SortIPs(all []string, ipv6First bool) []string {
	ips := IPs(all)
	if len(ips) == 2 && IsIPv6(ips[0]) != ipv6First {
		slices.Reverse(ips)
	}
	return ips
}
