package cni

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodelet/nodelet/host/iptables"
	"github.com/nodelet/nodelet/test/testbed"
)

// pluginsEnv names the directory of the real plugins for a copy of this test that runs in a network namespace of its
// own.
const pluginsEnv = "NODELET_CNI_PLUGINS"

// TestRealPlugins attaches sandboxes to the network that nodelet makes by itself, with the real plugins, on both
// families.
func TestRealPlugins(t *testing.T) {
	if os.Getenv(pluginsEnv) != "" {
		realPlugins(t)
		return
	}
	out, err := inOwnNetwork(t, "-test.run=^TestRealPlugins$", "-test.v").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestRealPlugins") {
		t.Fatalf("in a network namespace of its own: got %v, want TestRealPlugins passed:\n%s", err, out)
	}
}

// inOwnNetwork returns a command that runs this test program in a network namespace of its own, with the real plugins.
func inOwnNetwork(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	testbed.NeedPrograms(t, map[string]string{"ip": "iproute2", "iptables": "iptables", "unshare": "util-linux"})
	cache, err := testbed.OpenCache(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	plugins, err := cache.Programs(context.Background(), "cni")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", append([]string{"--net", os.Args[0]}, args...)...)
	cmd.Env = append(os.Environ(), pluginsEnv+"="+plugins)
	return cmd
}

func realPlugins(t *testing.T) {
	sh(t, "ip", "link", "set", "lo", "up")
	dir := t.TempDir()
	d := NewDriver(DriverConfig{Dir: dir, BinDirs: []string{os.Getenv(pluginsEnv)}})
	ranges := []netip.Prefix{netip.MustParsePrefix("10.55.0.0/29"), netip.MustParsePrefix("fd55::/64")}
	text, err := defaultConfig(dir, ownBridge+"0", ranges)
	if err != nil {
		t.Fatal(err)
	}
	n, err := parseNetwork(text)
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]any{"portMappings": []map[string]any{{"hostPort": 8088, "containerPort": 80, "protocol": "tcp"}},
		"bandwidth": map[string]any{"ingressRate": 8000000, "ingressBurst": 8000000}}
	attach := func(id string) (*Record, error) {
		rec := &Record{Sandbox: id, NetNS: namespace(t), Boot: bootID(), Runtime: processOf(os.Getpid()), Began: time.Now()}
		return rec, d.Attach(t.Context(), rec, []Wanted{{Network: n, IfName: "eth0", Capabilities: ports}})
	}
	first, err := attach("s1")
	if err != nil {
		t.Fatal(err)
	}
	ports = nil
	second, err := attach("s2")
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"10.55.0.2", "fd55::2"} {
		// A refusal comes from the other end; an IPv6 address takes a moment until it may be used.
		sh(t, "nsenter", "--net="+second.NetNS, "timeout", "20", "bash", "-c",
			"until (exec 3<>/dev/tcp/"+to+"/9) 2>&1 | grep refused; do sleep 0.1; done")
	}
	result, err := first.Attachments[0].result()
	if err != nil || len(result.IPs) != 2 {
		t.Fatalf("result: got %+v, %v, want two addresses", result, err)
	}
	// The plugins' own check passes, and finds what is taken away.
	if err := d.Check(t.Context(), "s1"); err != nil {
		t.Errorf("check of an unchanged sandbox: got %v, want no error", err)
	}
	sh(t, "nsenter", "--net="+first.NetNS, "ip", "route", "del", "default")
	if err := d.Check(t.Context(), "s1"); err == nil || !strings.Contains(err.Error(), "0.0.0.0") {
		t.Errorf("check without default route: got %v, want an error that names it", err)
	}
	// Three addresses are left of the six; when all are taken by sandboxes that are gone, they come back.
	for i := range 3 {
		if _, err := attach(fmt.Sprintf("gone%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := attach("last"); err == nil || !strings.Contains(err.Error(), noAddresses) {
		t.Fatalf("with all addresses taken: got %v, want an error that says so", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "addresses", ownName, "10.55.0.7"), []byte("never-seen\r\neth0"),
		0o644); err != nil {
		t.Fatal(err)
	}
	records, err := d.Records()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if strings.HasPrefix(r.Sandbox, "gone") {
			r.Boot = "another"
			if err := d.store.write(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	reaped, err := d.Reap(t.Context(), Alive{Own: n, List: listed()})
	if err != nil || len(reaped.Sandboxes) != 3 || !slices.Equal(reaped.Addresses, []string{"10.55.0.7"}) {
		t.Errorf("reaped: got %+v, %v, want three sandboxes and 10.55.0.7", reaped, err)
	}
	for _, id := range []string{"s1", "s2"} {
		if err := d.Detach(t.Context(), id, "", nil); err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "addresses", ownName, "[0-9f]*")); len(left) != 0 {
		t.Errorf("addresses left: got %q, want none", left)
	}
	if left := sh(t, "ip", "-o", "link", "show", "master", ownBridge+"0"); left != "" {
		t.Errorf("interfaces left: got\n%s\nwant none", left)
	}
	if left := sh(t, "iptables-save", "-t", "nat"); strings.Contains(left, "8088") {
		t.Errorf("rules left: got\n%s\nwant none of port 8088", left)
	}
	lostRecord(t, d, n)
	otherRanges(t, d, dir)
	masqueradeTwice(t, ranges)
}

// otherRanges checks that new sandboxes get a network after the node has got another pod CIDR, as it does when its
// Node object is deleted and made again, and that a sandbox of the old range keeps its own. When that is gone, nothing
// is left of the old range.
func otherRanges(t *testing.T, d *Driver, dir string) {
	t.Helper()
	bridge := ""
	attach := func(id, of string) {
		ranges := []netip.Prefix{netip.MustParsePrefix(of)}
		var err error
		if bridge, err = chooseBridge(ranges, ""); err != nil {
			t.Fatal(err)
		}
		text, err := defaultConfig(dir, bridge, ranges)
		if err != nil {
			t.Fatal(err)
		}
		n, err := parseNetwork(text)
		if err != nil {
			t.Fatal(err)
		}
		rec := &Record{Sandbox: id, NetNS: namespace(t), Boot: bootID(), Runtime: processOf(os.Getpid()),
			Began: time.Now()}
		if err := d.Attach(t.Context(), rec, []Wanted{{Network: n, IfName: "eth0"}}); err != nil {
			t.Fatalf("sandbox %s: got %v, want a network", id, err)
		}
	}
	bridgeWithoutAddress(t)
	attach("before", "10.56.0.0/24")
	attach("after", "10.57.0.0/24")
	attach("later", "10.57.0.0/24")
	for _, to := range []string{"10.56.0.2", "10.57.0.2", "10.57.0.3"} {
		sh(t, "timeout", "20", "bash", "-c", "until (exec 3<>/dev/tcp/"+to+"/9) 2>&1 | grep refused; do sleep 0.1; done")
	}
	for _, want := range []bool{true, false} {
		earlier, err := earlierRanges(bridge)
		if got := slices.Contains(earlier, netip.MustParsePrefix("10.56.0.0/24")); err != nil || got != want {
			t.Errorf("earlier ranges: got %s, %v, want 10.56.0.0/24 among them: %v", earlier, err, want)
		}
		if err := d.Detach(t.Context(), "before", "", nil); err != nil {
			t.Error(err)
		}
	}
	if left := sh(t, "ip", "route"); strings.Contains(left, "10.56.0.0/24") || !strings.Contains(left, "10.57.0.0/24") {
		t.Errorf("routes: got\n%s\nwant only that of the new range", left)
	}
}

// bridgeWithoutAddress checks that a bridge with a sandbox but without an address stays that of the network, also for
// another process: the first ADD is under way, or another program has removed the address.
func bridgeWithoutAddress(t *testing.T) {
	t.Helper()
	c := SourceConfig{Dir: t.TempDir(), BinDirs: []string{os.Getenv(pluginsEnv)}, Changed: func() {},
		Fallback: []netip.Prefix{netip.MustParsePrefix("10.58.0.0/24")}, Log: slog.New(slog.DiscardHandler)}
	s := NewSource(c)
	want := s.bridge
	sh(t, "ip", "link", "add", want, "type", "bridge")
	sh(t, "ip", "link", "add", "port", "master", want, "type", "veth", "peer", "name", "other")
	s.refresh()
	for process, s := range map[string]*Source{"same": s, "next": NewSource(c)} {
		if s.bridge != want {
			t.Errorf("in the %s process: got bridge %q, want %q, which has a sandbox", process, s.bridge, want)
		}
	}
	sh(t, "ip", "link", "delete", "port")
	sh(t, "ip", "link", "delete", want)
}

func masqueradeTwice(t *testing.T, ranges []netip.Prefix) {
	t.Helper()
	earlier := netip.MustParsePrefix("10.54.0.0/29")
	for _, pods := range [][]netip.Prefix{append(slices.Clone(ranges), earlier), ranges} {
		if err := Masquerade(context.Background(), pods, Private); err != nil {
			t.Fatal(err)
		}
	}
	for tool, want := range map[string]string{
		"iptables-save":  "-A NODELET-MASQ -s 10.55.0.0/29 -j MASQUERADE",
		"ip6tables-save": "-A NODELET-MASQ -s fd55::/64 -j MASQUERADE",
	} {
		out := sh(t, tool, "-t", "nat")
		if strings.Count(out, want) != 1 || strings.Count(out, "-j NODELET-MASQ") != 1 || strings.Contains(out, "10.54.") {
			t.Errorf("%s: want one rule of POSTROUTING, and %q, and none for earlier pods, got\n%s", tool, want, out)
		}
	}
	if drops, err := dropsForwarded(t.Context(), iptables.IPv4); err != nil || drops {
		t.Errorf("a firewall without rules: got %v, %v, want that it drops nothing that it forwards", drops, err)
	}
	sh(t, "iptables", "-P", "FORWARD", "DROP")
	if drops, err := dropsForwarded(t.Context(), iptables.IPv4); err != nil || !drops {
		t.Errorf("a firewall that drops what it forwards: got %v, %v, want that it does", drops, err)
	}
	for _, pods := range [][]netip.Prefix{append(slices.Clone(ranges), earlier), ranges} {
		if err := AllowForwarding(context.Background(), pods); err != nil {
			t.Fatal(err)
		}
	}
	out := sh(t, "iptables-save", "-t", "filter")
	for want, count := range map[string]int{"-s 10.55.0.0/29 -j ACCEPT": 1, "-d 10.55.0.0/29 -j ACCEPT": 1,
		"-j NODELET-FORWARD": 1, "10.54.": 0} {
		if n := strings.Count(out, want); n != count {
			t.Errorf("a firewall that drops what it forwards: got %d rules %q, want %d, in\n%s", n, want, count, out)
		}
	}
	if out := sh(t, "ip6tables-save", "-t", "filter"); strings.Contains(out, "fd55::/64") {
		t.Errorf("a firewall that drops nothing: got\n%s\nwant no rule for pods", out)
	}
}

// namespace makes a network namespace that ends with the test.
func namespace(t testing.TB) string {
	t.Helper()
	cmd := exec.Command("unshare", "--net", "sh", "-c", "echo; exec sleep 600")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil { // it is in its namespace now
		t.Fatal(err)
	}
	return fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
}

func sh(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
