package cgroups

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPodSize checks that PodSize returns exactly the values that CreatePod and UpdatePod have set.
func TestPodSize(t *testing.T) {
	onEachDriver(t, func(t *testing.T, tree *Tree) {
		if err := tree.Ensure(); err != nil {
			t.Fatal(err)
		}
		pod := Pod{UID: "1-2", QOS: corev1.PodQOSBurstable}
		want := Resources{CPUShares: 333, CPUQuota: 25000, CPUPeriod: 100000, Memory: 100<<20 + 1}
		if has, there, err := tree.PodSize(pod, want); there || err != nil {
			t.Fatalf("before it is made: got %+v %v %v, want none", has, there, err)
		}
		if err := tree.CreatePod(pod, want); err != nil {
			t.Fatal(err)
		}
		checkPodSize(t, tree, pod, want)
		if err := tree.UpdatePod(pod, Resources{CPUShares: 2, CPUQuota: -1, Memory: -1}); err != nil {
			t.Fatal(err)
		}
		has, there, err := tree.PodSize(pod, want)
		if !there || err != nil || has.CPUShares != 2 || has.CPUQuota != 0 || has.Memory != 0 {
			t.Errorf("without limits: got %+v %v %v, want 2 shares alone", has, there, err)
		}
	})
}

func checkPodSize(t *testing.T, tree *Tree, pod Pod, want Resources) {
	t.Helper()
	has, there, err := tree.PodSize(pod, want)
	if !there || err != nil || has.CPUShares != want.CPUShares || has.CPUQuota != want.CPUQuota ||
		has.CPUPeriod != want.CPUPeriod || has.Memory != want.Memory {
		t.Errorf("got %+v, %v, %v, want %+v", has, there, err, want)
	}
}

// TestRoundedQuota checks that no quota but 104m and what it is rounded up to for systemd counts as a quota of 104m.
func TestRoundedQuota(t *testing.T) {
	want := Resources{CPUQuota: 10400, CPUPeriod: 100000}
	for quota, same := range map[int64]bool{
		9500: false, 10000: false, 10399: false, 10400: true, 11000: true, 11400: false,
	} {
		has := Resources{CPUQuota: quota, CPUPeriod: 100000}
		if got := has.asIn(want, true); (got.CPUQuota == want.CPUQuota) != same {
			t.Errorf("quota of %d: got %d, want that of %d: %v", quota, got.CPUQuota, want.CPUQuota, same)
		}
	}
}

// TestSharesOf checks that the shares of each weight are converted back to the same weight.
func TestSharesOf(t *testing.T) {
	for w := uint64(1); w <= 10000; w++ {
		if got := weight(leastShares(w)); got != w {
			t.Fatalf("weight of %d shares: got %d, want %d", leastShares(w), got, w)
		}
	}
}
