package podfs

import "testing"

func TestResetNote(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	noted := func(want bool) {
		t.Helper()
		if got, err := v.ResetMarked(pod.UID); err != nil || got != want {
			t.Errorf("noted: %v %v, want %v", got, err, want)
		}
	}
	noted(false)
	if err := v.UnmarkReset(pod.UID); err != nil {
		t.Error(err)
	}
	if err := v.MarkReset(pod.UID); err == nil {
		t.Error("a reset is noted of a pod without a directory")
	}
	if err := v.MakePodDir(pod.UID); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := v.MarkReset(pod.UID); err != nil {
			t.Fatal(err)
		}
		noted(true)
	}
	for range 2 {
		if err := v.UnmarkReset(pod.UID); err != nil {
			t.Fatal(err)
		}
		noted(false)
	}
	if err := v.MarkReset(pod.UID); err != nil {
		t.Fatal(err)
	}
	if err := v.RemovePodDir(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	noted(false)
}
