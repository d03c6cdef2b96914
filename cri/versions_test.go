package cri_test

import (
	"strings"
	"testing"

	"github.com/nodelet/nodelet/cri"
)

// TestNoImageSubPath checks which runtimes count as unable to mount a subPath of an image volume.
func TestNoImageSubPath(t *testing.T) {
	for _, tc := range []struct {
		name, version string
		lacks         bool
	}{
		{"containerd", "1.7.29-k3s1", true},
		{"containerd", "v2.1.9", true},
		{"containerd", "2.1.6+bottlerocket", true},
		{"containerd", "v2.2.0-rc.1", false},
		{"containerd", "v2.2.0", false},
		{"containerd", "v3.0.0", false},
		{"containerd", "unknown", false},
		{"containerd", "", false},
		{"cri-o", "1.35.2", false},
	} {
		if got := cri.NoImageSubPath(tc.name, tc.version); (got != "") != tc.lacks {
			t.Errorf("%s %s: got %q, want a problem: %t", tc.name, tc.version, got, tc.lacks)
		}
	}
}

func TestVersionWarnings(t *testing.T) {
	all := map[string]string{ // by a short name
		"volumes": "CVE-2022-23648", "output": "CVE-2022-31030", "resize": "CVE-2022-23471", "extra": "CVE-2023-25173",
		"cgroup": "CVE-2025-47291", "attach": "CVE-2025-64329", "groups": "CVE-2026-47262", "tag": "CVE-2026-50195",
		"label": "CVE-2026-53488", "link": "CVE-2026-53489", "devices": "CVE-2026-53492", "drain": "CVE-2026-53495",
		"context": "CVE-2026-95837", "digest": "CVE-2026-95839", "unpack": "CVE-2025-47290",
		"sysctl": "CVE-2022-0811", "crioOutput": "CVE-2022-1708", "annotation": "CVE-2024-3154", "mtab": "CVE-2024-5154",
	}
	for _, tc := range []struct{ name, version, want string }{
		{"containerd", "v2.4.2", ""},
		{"containerd", "v2.4.1", "digest"},
		{"containerd", "v2.3.7", ""},
		{"containerd", "v2.3.5", "digest"},
		{"containerd", "v2.3.4", "drain digest"},
		{"containerd", "v2.3.3", "drain context digest"},
		{"containerd", "v2.3.2", "drain context digest"},
		{"containerd", "v2.3.1", "groups tag label link devices drain context digest"},
		{"containerd", "2.2.10", ""},
		{"containerd", "2.2.8", "digest"},
		{"containerd", "2.2.6", "drain context digest"},
		{"containerd", "2.2.4", "groups tag label link devices drain context digest"},
		{"containerd", "v2.2.0-rc.1", "attach groups tag label link devices drain context"},
		{"containerd", "v2.1.9", "drain context"},
		{"containerd", "v2.1.5", "groups tag label link devices drain context"},
		{"containerd", "v2.1.4", "attach groups tag label link devices drain context"},
		{"containerd", "v2.1.0", "unpack attach groups tag label link devices drain context"},
		{"containerd", "v2.0.12", ""},
		{"containerd", "v2.0.10", "drain"},
		{"containerd", "v2.0.9", "groups label drain"},
		{"containerd", "v2.0.5", "attach groups label drain"},
		{"containerd", "v2.0.4", "cgroup attach groups label drain"},
		{"containerd", "v2.0.0", "attach groups label drain"},
		{"containerd", "v1.7.35", ""},
		{"containerd", "v1.7.33", "drain"},
		{"containerd", "v1.7.32", "groups label drain"},
		{"containerd", "v1.7.29-k3s1", "groups label drain"},
		{"containerd", "1.6.20~ds1", "attach groups label drain"},
		{"containerd", "1.6.18", "attach groups label drain"},
		{"containerd", "1.6.17", "extra attach groups label drain"},
		{"containerd", "1.6.12", "extra attach groups label drain"},
		{"containerd", "1.6.11", "resize extra attach groups label drain"},
		{"containerd", "1.6.6", "resize extra attach groups label drain"},
		{"containerd", "1.6.1", "output resize extra attach groups label drain"},
		{"containerd", "1.6.0", "volumes output resize extra attach groups label drain"},
		{"containerd", "1.3.0", "volumes output resize extra attach groups label drain"},
		{"containerd", "v3.0.0", ""},
		{"containerd", "", ""},
		{"containerd", "unknown", ""},
		{"containerd", "1.6", ""},
		{"containerd", "1..6", ""},
		{"cri-o", "1.35.2", ""},
		{"cri-o", "1.30.2", ""},
		{"cri-o", "1.30.1", "mtab"},
		{"cri-o", "1.29.5", ""},
		{"cri-o", "1.29.4", "mtab"},
		{"cri-o", "1.29.3", "annotation mtab"},
		{"cri-o", "1.28.7", ""},
		{"cri-o", "1.28.6", "mtab"},
		{"cri-o", "1.27.7", ""},
		{"cri-o", "1.24.0", "crioOutput annotation mtab"},
		{"cri-o", "1.23.1", "sysctl crioOutput annotation mtab"},
		{"cri-o", "1.22.0", "sysctl crioOutput annotation mtab"},
		{"cri-o", "1.21.6", "crioOutput annotation"},
		{"cri-o", "1.18.0", "crioOutput annotation"},
		{"another", "1.6.0", ""},
	} {
		got, want := cri.VersionWarnings(tc.name, tc.version), strings.Fields(tc.want)
		if len(got) != len(want) {
			t.Errorf("%s %s: got %q, want %q", tc.name, tc.version, got, want)
			continue
		}
		for i, short := range want {
			if !strings.Contains(got[i], all[short]+" (") || !strings.Contains(got[i], "upgrade to ") {
				t.Errorf("%s %s: got %q, want %s", tc.name, tc.version, got[i], all[short])
			}
		}
	}
}
