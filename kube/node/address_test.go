package node

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/ownmounts"
)

// hostIP returns an address of this machine that other machines could reach.
func hostIP(t *testing.T) netip.Addr {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && usable(p.Addr()) == nil {
			return p.Addr()
		}
	}
	t.Skip("this machine has only loopback addresses")
	return netip.Addr{}
}

func TestUsable(t *testing.T) {
	for _, bad := range []string{
		"127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "169.254.1.1", "fe80::1", "192.0.2.77", "2001:db8::77",
	} {
		if usable(netip.MustParseAddr(bad)) == nil {
			t.Errorf("usable(%s): got nil, want an error", bad)
		}
	}
	if ip := hostIP(t); usable(ip) != nil {
		t.Errorf("usable(%s): got %v, want nil", ip, usable(ip))
	}
}

// TestUsableWithNonlocalBind checks that the address of another machine is not usable where programs may bind to it, as
// on the machines of a control plane with keepalived.
func TestUsableWithNonlocalBind(t *testing.T) {
	foreign := netip.MustParseAddr("192.0.2.77")
	var prepared, bound, got error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread, with its network, ends with this goroutine
		if prepared = unix.Unshare(unix.CLONE_NEWNET); prepared != nil {
			return
		}
		if prepared = os.WriteFile("/proc/sys/net/ipv4/ip_nonlocal_bind", []byte("1"), 0); prepared != nil {
			return
		}
		var c net.PacketConn
		if c, bound = net.ListenPacket("udp", netip.AddrPortFrom(foreign, 0).String()); bound == nil {
			_ = c.Close()
		}
		got = usable(foreign)
	}()
	<-done
	ownmounts.Need(t, "a network namespace", prepared)
	switch {
	case bound != nil:
		t.Errorf("bind to %s: got %v, want no error", foreign, bound)
	case got == nil:
		t.Errorf("usable(%s): got nil, want an error", foreign)
	}
}

func TestFindIPs(t *testing.T) {
	ip := hostIP(t)
	got, _, err := findIPs(t.Context(), "no-such-name.invalid", []netip.Addr{ip}, nil)
	if err != nil || len(got) != 1 || got[0] != ip {
		t.Errorf("with --node-ip %v: got %v, %v, want one", ip, got, err)
	}
	if _, _, err := findIPs(t.Context(), "n", []netip.Addr{netip.MustParseAddr("192.0.2.77")}, nil); err == nil {
		t.Error("with --node-ip of another machine: got no error")
	}
	if got, _, err := findIPs(t.Context(), "192.0.2.5", nil, nil); err != nil || got[0].String() != "192.0.2.5" {
		t.Errorf("with the node name 192.0.2.5: got %v, %v", got, err)
	}
	got, _, err = findIPs(t.Context(), "no-such-name.invalid", nil, nil)
	if err == nil && usable(got[0]) != nil {
		t.Errorf("by the default route: got %v, which is not usable: %v", got, usable(got[0]))
	}
	t.Logf("by the default route: %v, %v", got, err)
}

// TestResolvedAddressesStay checks that a node keeps the address that its name has while DNS does not answer.
func TestResolvedAddressesStay(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	resolved := []netip.Addr{netip.MustParseAddr("192.0.2.6")}
	got, byName, err := findIPs(ctx, "no-such-name.invalid", nil, resolved)
	if err != nil || !slices.Equal(got, resolved) || !byName {
		t.Errorf("got %v, by name %v, %v, want %v by name", got, byName, err, resolved)
	}
}

// TestAddressesOfExternalCloud checks that with an external cloud provider the name is the only address if --node-ip is
// not set. Until the address of --node-ip is there, the node has none: the first ones are not replaced.
func TestAddressesOfExternalCloud(t *testing.T) {
	cfg := testConfig(t)
	cfg.ExternalCloud = true
	var own ownAddresses
	if got := own.list(&cfg); len(got) != 1 || got[0].Address != cfg.Name {
		t.Errorf("without --node-ip: got %v, want %s", got, cfg.Name)
	}
	cfg.IPs = []netip.Addr{netip.MustParseAddr("192.0.2.77")}
	if got := own.list(&cfg); got != nil {
		t.Errorf("before the address is there: got %v, want none", got)
	}
	own.ips = cfg.IPs
	if got := own.list(&cfg); len(got) != 2 || got[0].Address != "192.0.2.77" {
		t.Errorf("with the address: got %v, want it and %s", got, cfg.Name)
	}
}

// TestAddressesAreFollowed checks when the addresses are found again: those that this machine has lost at once, others
// now and then.
func TestAddressesAreFollowed(t *testing.T) {
	cfg := testConfig(t)
	var own ownAddresses
	first, second := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	lost, now := netip.MustParseAddr("192.0.2.6"), time.Now()
	for _, step := range []struct {
		after       time.Duration
		found, want netip.Addr // found is invalid if nothing is
		byName      bool       // it is found by the name of the node
		resolved    int        // the addresses that count as found by the name before
	}{
		{0, first, first, true, 0},
		{addressInterval / 2, second, first, true, 0},
		{addressInterval / 2, second, second, false, 1},
		{addressInterval, netip.Addr{}, second, false, 0},
		{addressInterval, lost, lost, true, 0},
		{time.Second, first, first, false, 0},
	} {
		now = now.Add(step.after)
		own.find = func(_ context.Context, _ string, _, resolved []netip.Addr) ([]netip.Addr, bool, error) {
			if len(resolved) != step.resolved {
				t.Errorf("found %v: got %v as resolved before, want %d", step.found, resolved, step.resolved)
			}
			if !step.found.IsValid() {
				return nil, false, errors.New("no default route")
			}
			return []netip.Addr{step.found}, step.byName, nil
		}
		own.refresh(t.Context(), now, &cfg)
		if !slices.Equal(own.ips, []netip.Addr{step.want}) {
			t.Errorf("found %v: got %v, want %v", step.found, own.ips, step.want)
		}
	}
}
