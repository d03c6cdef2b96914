package cni

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// lostRecord checks Reap after the records of two sandboxes with host ports and limits were lost; one of the two
// still runs.
func lostRecord(t *testing.T, d *Driver, n *Network) {
	t.Helper()
	wants := map[string]any{"portMappings": []map[string]any{{"hostPort": 8089, "containerPort": 80, "protocol": "tcp"}},
		"bandwidth": map[string]any{"egressRate": 8000000, "egressBurst": 8000000}}
	var records []*Record
	for _, id := range []string{"lost", "live", "recorded"} {
		rec := &Record{Sandbox: id, NetNS: namespace(t), Boot: bootID(), Runtime: processOf(os.Getpid()), Began: time.Now()}
		if err := d.Attach(t.Context(), rec, []Wanted{{Network: n, IfName: "eth0", Capabilities: wants}}); err != nil {
			t.Fatal(err)
		}
		records = append(records, rec)
	}
	for _, id := range []string{"lost", "live"} {
		if err := os.RemoveAll(d.store.path(id)); err != nil {
			t.Fatal(err)
		}
	}
	// A device of another program's container.
	sh(t, "ip", "link", "add", limiter(n.Name, "other"), "type", "ifb")
	for range 2 { // the second time there is nothing to do
		r, err := d.Reap(t.Context(), Alive{Own: n, List: listed("live", "recorded")})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("reaped %+v", r)
	}
	for id, want := range map[string]bool{"lost": false, "live": true, "recorded": true, "other": true} {
		if _, err := net.InterfaceByName(limiter(n.Name, id)); (err == nil) != want {
			t.Errorf("device of the limit of sandbox %q: got %v, want that it exists: %v", id, err, want)
		}
		_, reserved := addressOf(t, d, id)
		if id != "other" && reserved != want {
			t.Errorf("address of sandbox %q is reserved: got %v, want %v", id, reserved, want)
		}
	}
	left, err := hostPorts(t.Context())
	if want := [][2]string{{n.Name, "live"}, {n.Name, "recorded"}}; err != nil || !slices.Equal(left, want) {
		t.Errorf("host ports of %q, %v; want %q", left, err, want)
	}
	rules := sh(t, "iptables-save", "-t", "nat")
	if got := strings.Count(rules, ":CNI-DN-"); got != 2 {
		t.Errorf("got %d chains of host ports left, want 2:\n%s", got, rules)
	}
	if err := errors.Join(d.Detach(t.Context(), "recorded", "", nil),
		d.Detach(t.Context(), "live", "", records[1])); err != nil {
		t.Error(err)
	}
}

// addressOf finds the reservation of a sandbox among those of host-local.
func addressOf(t *testing.T, d *Driver, id string) (address string, reserved bool) {
	t.Helper()
	dir := filepath.Join(d.store.addresses(), ownName)
	err := eachAddress(dir, func(_ string, addr netip.Addr, sandbox string) error {
		if sandbox == id {
			address, reserved = addr.String(), true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return address, reserved
}
