package cgroups

import (
	"path"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/cgroups/names"
)

// TestPodParentIsTheKubelets compares with names that were read from nodes with the kubelet.
func TestPodParentIsTheKubelets(t *testing.T) {
	const uid = "1234abcd-5678-90ef-0000-000000000001"
	for _, c := range []struct {
		root, driver string
		qos          corev1.PodQOSClass
		want         string
	}{
		{"", "cgroupfs", "Guaranteed", "/kubepods/pod1234abcd-5678-90ef-0000-000000000001"},
		{"/", "cgroupfs", "Burstable", "/kubepods/burstable/pod1234abcd-5678-90ef-0000-000000000001"},
		{"/", "cgroupfs", "BestEffort", "/kubepods/besteffort/pod1234abcd-5678-90ef-0000-000000000001"},
		{"/nodelet-tb", "cgroupfs", "BestEffort", "/nodelet-tb/kubepods/besteffort/pod1234abcd-5678-90ef-0000-000000000001"},
		{"/", "systemd", "Guaranteed", "/kubepods.slice/kubepods-pod1234abcd_5678_90ef_0000_000000000001.slice"},
		{"/", "systemd", "Burstable", "/kubepods.slice/kubepods-burstable.slice/" +
			"kubepods-burstable-pod1234abcd_5678_90ef_0000_000000000001.slice"},
		{"/kubelet", "systemd", "BestEffort", "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/" +
			"kubelet-kubepods-besteffort-pod1234abcd_5678_90ef_0000_000000000001.slice"},
	} {
		tree := newTree(Config{Root: c.root, Driver: c.driver}, true)
		got, err := tree.PodParent(Pod{UID: uid, QOS: c.qos})
		if err != nil || got != c.want {
			t.Errorf("root %q, %s, %s: got %s, %v, want %s", c.root, c.driver, c.qos, got, err, c.want)
		}
		if back, ok := names.UID(path.Base(got), tree.systemd.Load()); !ok || back != uid {
			t.Errorf("UID of %s: got %q, %v, want %q", got, back, ok, uid)
		}
	}
}

func TestOthersCgroupsAreNotPods(t *testing.T) {
	for driver, others := range map[string][]string{
		"cgroupfs": {"burstable", "pod", "podx.slice/..", "init.scope"},
		"systemd":  {"kubepods-burstable.slice", "podabc", "kubepods-pod.slice", "cri-containerd-1.scope"},
	} {
		tree := newTree(Config{Driver: driver}, true)
		for _, name := range others {
			if uid, ok := names.UID(name, tree.systemd.Load()); ok && names.ValidUID(uid) {
				t.Errorf("%s: %q: got the pod %q, want none", driver, name, uid)
			}
		}
	}
}

// FuzzPodNames checks that the cgroup of every valid UID is directly below its class, and that UID returns the UID
// from its name.
func FuzzPodNames(f *testing.F) {
	for _, seed := range []string{"1234-5678", "..", "../../x", "a/b", "a_b", "", "x.slice", "-", "a--b", "\x00"} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, uid string, systemd bool) {
		driver := DriverCgroupfs
		if systemd {
			driver = DriverSystemd
		}
		tree := newTree(Config{Root: "/root", Driver: driver}, true)
		p := Pod{UID: types.UID(uid), QOS: corev1.PodQOSBurstable}
		got, err := tree.PodParent(p)
		if err != nil {
			return
		}
		class := tree.spell(tree.pods.Class(p.QOS))
		if path.Clean(got) != got || path.Dir(got) != class || strings.ContainsAny(path.Base(got), "\x00\n") {
			t.Fatalf("cgroup of UID %q: got %q, want one directly below that of its class", uid, got)
		}
		if back, ok := names.UID(path.Base(got), tree.systemd.Load()); !ok || string(back) != uid {
			t.Fatalf("UID of %s: got %q, want %q", got, back, uid)
		}
	})
}
