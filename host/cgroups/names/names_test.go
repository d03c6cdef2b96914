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

func TestParseName(t *testing.T) {
	for in, want := range map[string]string{
		"": "/", "/": "/", "/kubelet": "/kubelet", "kubelet/": "/kubelet", "//a//b": "/a/b",
		"/kube.slice/kube-reserved_x.slice": "/kube/reserved-x", "system.slice": "/system",
	} {
		if got := Parse(in).Spell(false); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}
