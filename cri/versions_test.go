package cri_test

import (
	"strings"
	"testing"

	"github.com/nodelet/nodelet/cri"
)

func TestVersionWarnings(t *testing.T) {
	const (
		volumes = "CVE-2022-23648"
		output  = "CVE-2022-31030"
		resize  = "CVE-2022-23471"
		attach  = "CVE-2025-64329"
		drain   = "CVE-2026-53495"
	)
	for _, tc := range []struct {
		name, version string
		want          []string
	}{
		{"containerd", "v2.4.2", nil},
		{"containerd", "v2.3.5", nil},
		{"containerd", "v2.3.4", []string{drain}},
		{"containerd", "2.2.8", nil},
		{"containerd", "v2.2.0", []string{drain}},
		{"containerd", "v2.2.0-rc.1", []string{attach, drain}},
		{"containerd", "v2.1.5", []string{drain}},
		{"containerd", "v2.1.4", []string{attach, drain}},
		{"containerd", "v2.0.12", nil},
		{"containerd", "v2.0.6", []string{attach, drain}},
		{"containerd", "v1.7.35", nil},
		{"containerd", "v1.7.29-k3s1", []string{drain}},
		{"containerd", "1.6.20~ds1", []string{attach, drain}},
		{"containerd", "1.6.12", []string{attach, drain}},
		{"containerd", "1.6.11", []string{resize, attach, drain}},
		{"containerd", "1.6.6", []string{resize, attach, drain}},
		{"containerd", "1.6.1", []string{output, resize, attach, drain}},
		{"containerd", "1.6.0", []string{volumes, output, resize, attach, drain}},
		{"containerd", "1.3.0", []string{volumes, output, resize, attach, drain}},
		{"containerd", "v3.0.0", nil},
		{"containerd", "", nil},
		{"containerd", "unknown", nil},
		{"containerd", "1.6", nil},
		{"containerd", "1..6", nil},
		{"cri-o", "1.6.0", nil},
	} {
		got := cri.VersionWarnings(tc.name, tc.version)
		if len(got) != len(tc.want) {
			t.Errorf("%s %s: got %q, want %v", tc.name, tc.version, got, tc.want)
			continue
		}
		for i, id := range tc.want {
			if !strings.Contains(got[i], id) || !strings.Contains(got[i], "upgrade to ") {
				t.Errorf("%s %s: got %q, want %s", tc.name, tc.version, got[i], id)
			}
		}
	}
}
