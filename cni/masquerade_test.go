package cni

import (
	"net/netip"
	"os"
	"path/filepath"
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
