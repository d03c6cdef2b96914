package manager

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/cni"
)

// TestDefaultRange checks that a node has a pod network without an API server and without podCIDR, and that the default
// range counts for no other node: neither for one that waits for its Node object, nor for one with ranges.
func TestDefaultRange(t *testing.T) {
	bins := t.TempDir()
	for _, plugin := range []string{"bridge", "host-local", "portmap", "bandwidth"} {
		if err := os.WriteFile(filepath.Join(bins, plugin), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	configured := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
	before := t.TempDir() // of an agent that has learned its ranges
	cni.NewSource(cni.SourceConfig{Dir: before, BinDirs: []string{bins}, Changed: func() {},
		Log: slog.New(slog.DiscardHandler)}).SetRanges(configured)
	for name, test := range map[string]struct {
		cfg  Config
		want string
	}{
		"alone":             {Config{}, "[" + defaultRange.String() + "]"},
		"with podCIDR":      {Config{PodCIDRs: configured}, "[10.1.0.0/24]"},
		"in a cluster":      {Config{Core: &rest.RESTClient{}}, "[]"},
		"once in a cluster": {Config{Dir: before}, "[10.1.0.0/24]"},
		"with a network":    {Config{Conf: "/nonexistent"}, "[]"},
	} {
		var out strings.Builder
		c := test.cfg
		c.Log, c.CheckSoon = slog.New(slog.NewTextHandler(&out, nil)), func() {}
		if c.Dir == "" {
			c.Dir = t.TempDir()
		}
		m := New(c)
		a := newAgentMode(m, cni.Dirs{Conf: t.TempDir(), Bins: []string{bins}})
		a.setRanges(m.ranges)
		if got := fmt.Sprint(a.source.Ranges()); got != test.want {
			t.Errorf("%s: got the ranges %s, want %s", name, got, test.want)
		}
		if err := a.problem(true); (err == nil) != (test.want != "[]") {
			t.Errorf("%s: got the problem %v", name, err)
		}
		if n := strings.Count(out.String(), defaultRange.String()); (n > 0) != (name == "alone") || n > 1 {
			t.Errorf("%s: got the log\n%s\nwant the default range once if it counts", name, &out)
		}
	}
}
