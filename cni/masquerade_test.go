package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestBusyFirewall checks that rules count as absent only if iptables says so, and not while another program holds its
// lock.
func TestBusyFirewall(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		writeProgram(t, filepath.Join(bin, name), "#!/bin/sh\n[ -e "+bin+"/free ] && exit 1\nexit 4\n")
	}
	t.Setenv("PATH", bin)
	ctx, pods := t.Context(), []netip.Prefix{netip.MustParsePrefix("10.55.0.0/24")}
	for _, busy := range []bool{true, false} {
		if !busy {
			if err := os.WriteFile(filepath.Join(bin, "free"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for what, err := range map[string]error{
			"removing the rules for masquerading": Masquerade(ctx, nil, nil),
			"removing the rules for forwarding":   AllowForwarding(ctx, nil),
			"adding the rules for forwarding":     AllowForwarding(ctx, pods),
		} {
			if (err != nil) != busy {
				t.Errorf("%s, busy %v: got %v, want an error only then", what, busy, err)
			}
		}
	}
}

// TestHostPortsOfBusyFirewall checks that host ports that cannot be listed do not count as none, and that those of the
// other address family are still found.
func TestHostPortsOfBusyFirewall(t *testing.T) {
	for code, want := range map[int]bool{3: false, 4: true} { // 3: no such table
		bin := t.TempDir()
		writeProgram(t, filepath.Join(bin, "iptables"), fmt.Sprintf("#!/bin/sh\nexit %d\n", code))
		writeProgram(t, filepath.Join(bin, "ip6tables"), `#!/bin/sh
echo '-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"net\" id: \"lost\"" -m multiport -j CNI-DN-0'
`)
		t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
		found, err := hostPorts(t.Context())
		if (err != nil) != want || !slices.Equal(found, [][2]string{{"net", "lost"}}) {
			t.Errorf("exit code %d: got %q, %v, want those of IPv6, and an error: %v", code, found, err, want)
		}
	}
}
