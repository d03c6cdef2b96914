package names

import "testing"

func TestUnit(t *testing.T) {
	for _, c := range []struct{ cgroup, parent, unit string }{
		{"/kubepods", "-.slice", "kubepods.slice"},
		{"/kubepods/burstable", "kubepods.slice", "kubepods-burstable.slice"},
		{"/a-b/kubepods", "a_b.slice", "a_b-kubepods.slice"},
	} {
		if parent, unit := Parse(c.cgroup).Unit(); parent != c.parent || unit != c.unit {
			t.Errorf("%s: got %s in %s, want %s in %s", c.cgroup, unit, parent, c.unit, c.parent)
		}
	}
}

// TestSpell checks the names that the kubelet gives to cgroups of the configuration and those below them.
func TestSpell(t *testing.T) {
	for in, want := range map[string]struct{ cgroupfs, systemd string }{
		"":             {"/", "/"},
		"/":            {"/", "/"},
		"/kubelet":     {"/kubelet", "/kubelet.slice"},
		"kubelet/":     {"/kubelet", "/kubelet.slice"},
		"//a//b-c":     {"/a/b-c", "/a.slice/a-b_c.slice"},
		"system.slice": {"/system.slice", "/system.slice"},
		"/kube.slice/kube-reserved_x.slice": {
			"/kube.slice/kube-reserved_x.slice",
			"/kube.slice/kube-reserved_x.slice",
		},
		"/kube-reserved.slice": {"/kube-reserved.slice", "/kube.slice/kube-reserved.slice"},
		"/kube.slice/pods-1":   {"/kube.slice/pods-1", "/kube.slice/kube-pods_1.slice"},
	} {
		n := Parse(in)
		if got := n.Spell(false); got != want.cgroupfs {
			t.Errorf("%q with cgroupfs: got %s, want %s", in, got, want.cgroupfs)
		}
		if got := n.Spell(true); got != want.systemd {
			t.Errorf("%q with systemd: got %s, want %s", in, got, want.systemd)
		}
	}
}

// TestParseSlice checks that the cgroup of a reservation is a slice, as with the kubelet.
func TestParseSlice(t *testing.T) {
	for in, want := range map[string]string{
		"system.slice":                    "/system.slice",
		"/system":                         "/system.slice",
		"/kube.slice/kube-reserved.slice": "/kube.slice/kube-reserved.slice",
		"/kube-reserved":                  "/kube.slice/kube-reserved.slice",
	} {
		if got := ParseSlice(in).Spell(true); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}
