package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

const (
	// addressInterval is how often the node's addresses are found.
	addressInterval = time.Minute
	// lookupLimit is the timeout of the DNS lookup of the node's own name. Often no DNS server knows that name.
	lookupLimit = 2 * time.Second
)

// ownAddresses are the addresses of the node. One goroutine uses them.
type ownAddresses struct {
	find    func(ctx context.Context, name string, wanted, resolved []netip.Addr) ([]netip.Addr, bool, error)
	ips     []netip.Addr
	byName  bool      // the name of the node resolves to ips
	found   time.Time // when they were looked for
	problem string    // the last error, so that it is logged once
}

// refresh finds the node's addresses if they are unknown or no longer on this machine, and now and then: the name of
// the node may resolve to another one, and the default route may have come up on another interface, or moved there. On
// an error the old ones stay: an address that may come back is better than none.
func (a *ownAddresses) refresh(ctx context.Context, now time.Time, cfg *Config) {
	known := a.ips
	if slices.ContainsFunc(known, func(ip netip.Addr) bool { return local(ip) != nil }) {
		known = nil
	}
	if len(known) > 0 && now.Sub(a.found) < addressInterval {
		return
	}
	if cfg.ExternalCloud && len(cfg.IPs) == 0 {
		return // the cloud controller manager sets them
	}
	if !a.byName {
		known = nil
	}
	ips, byName, err := a.find(ctx, cfg.Name, cfg.IPs, known)
	a.found = now
	problem := ""
	if err != nil {
		problem = err.Error()
	} else {
		a.ips, a.byName = ips, byName
	}
	if problem != "" && problem != a.problem {
		cfg.Log.Warn("cannot find the node's address, trying again", "err", err)
	}
	a.problem = problem
}

// list returns status.addresses: the IPs in order, then the name; nil while they are unknown. It is the name alone if
// the cloud controller manager sets the IPs.
func (a *ownAddresses) list(cfg *Config) []corev1.NodeAddress {
	if len(a.ips) == 0 && !(cfg.ExternalCloud && len(cfg.IPs) == 0) {
		return nil
	}
	return addresses(a.ips, cfg.Name)
}

// findIPs returns the node's addresses: those of --node-ip if this machine can use them; else the node's name if it is
// an address; else what the name resolves to; else the address of the interface with the default route. wanted may
// hold one unspecified address, which selects the address family. resolved are those that an earlier call has found by
// the name, as byName says: they stay while DNS does not answer.
func findIPs(ctx context.Context, name string, wanted, resolved []netip.Addr) (
	ips []netip.Addr, byName bool, err error) {
	if len(wanted) > 0 && !wanted[0].IsUnspecified() {
		for _, ip := range wanted {
			if err := usable(ip); err != nil {
				return nil, false, fmt.Errorf("use the address of --node-ip: %w", err)
			}
		}
		return wanted, false, nil
	}
	prefer4 := len(wanted) == 0 || wanted[0].Is4()
	if ip, err := netip.ParseAddr(name); err == nil {
		return []netip.Addr{ip}, false, nil
	}
	switch ip, err := lookup(ctx, name, prefer4); {
	case ip.IsValid():
		return []netip.Addr{ip}, true, nil
	case err != nil && len(resolved) > 0:
		return resolved, true, nil
	}
	ip, err := routed(prefer4)
	if err != nil {
		return nil, false, fmt.Errorf("find the node's address by the default route: %w", err)
	}
	return []netip.Addr{ip}, false, nil
}

// routed returns the address of the interface with the default route.
func routed(prefer4 bool) (netip.Addr, error) {
	var bind net.IP
	if !prefer4 {
		bind = net.IPv6zero
	}
	found, err := utilnet.ResolveBindAddress(bind)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%w; set it with --node-ip", err)
	}
	ip, ok := netip.AddrFromSlice(found)
	if !ok {
		return netip.Addr{}, fmt.Errorf("%v is not an address", found)
	}
	return ip.Unmap(), nil
}

// lookup resolves the node's name. It returns the first usable address of the preferred family, else of the other one,
// and none if there is none: most names are unknown to DNS. It is an error if that is not known.
func lookup(ctx context.Context, name string, prefer4 bool) (other netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	answers, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if unknown, ok := errors.AsType[*net.DNSError](err); ok && unknown.IsNotFound {
		return other, nil
	}
	if err != nil {
		return other, err
	}
	for _, ip := range answers {
		ip = ip.Unmap()
		if usable(ip) != nil {
			continue
		}
		if ip.Is4() == prefer4 {
			return ip, nil
		}
		if !other.IsValid() {
			other = ip
		}
	}
	return other, nil
}

// usable returns an error if ip cannot be a node's address: other machines must be able to reach it, and an interface
// of this machine must have it.
func usable(ip netip.Addr) error {
	switch {
	case ip.IsLoopback():
		return fmt.Errorf("%s is a loopback address; other machines cannot reach it", ip)
	case ip.IsMulticast(), ip.IsUnspecified(), ip.IsLinkLocalUnicast():
		return fmt.Errorf("%s is not the unicast address of one machine", ip)
	}
	return local(ip)
}

// These are addresses that no machine has (RFC 5737, RFC 3849).
var documentation4, documentation6 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")

// local returns an error if no interface of this machine has the address ip. It binds a socket, which normally works
// only for such an address, and is much cheaper than listing those of all interfaces. With the sysctl ip_nonlocal_bind,
// which keepalived needs, it works for each address: then they are listed.
func local(ip netip.Addr) error {
	if err := bind(ip); err != nil {
		return fmt.Errorf("%s is on no interface of this machine: %w", ip, err)
	}
	nowhere := documentation6
	if ip.Is4() {
		nowhere = documentation4
	}
	if bind(nowhere) != nil {
		return nil
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("list the addresses of this machine: %w", err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip.AsSlice()) {
			return nil
		}
	}
	return fmt.Errorf("%s is on no interface of this machine", ip)
}

func bind(ip netip.Addr) error {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 0)))
	if err != nil {
		return err
	}
	return c.Close()
}

// addresses returns status.addresses: the IPs in order, then the name.
func addresses(ips []netip.Addr, name string) []corev1.NodeAddress {
	var list []corev1.NodeAddress
	for _, ip := range ips {
		list = append(list, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	return append(list, corev1.NodeAddress{Type: corev1.NodeHostName, Address: name})
}
