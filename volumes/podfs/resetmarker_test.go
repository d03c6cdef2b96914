package podfs

import "testing"

func TestResetMark(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	want := func(mark string, marked bool) {
		t.Helper()
		if got, exists, err := v.ResetMark(pod.UID); err != nil || got != mark || exists != marked {
			t.Errorf("got %q %v %v, want %q %v", got, exists, err, mark, marked)
		}
	}
	want("", false)
	if err := v.UnmarkReset(pod.UID); err != nil {
		t.Error(err)
	}
	if err := v.MarkReset(pod.UID, "removing"); err == nil {
		t.Error("mark a reset of a pod without a directory: got no error, want one")
	}
	if err := v.MakePodDir(pod.UID); err != nil {
		t.Fatal(err)
	}
	for _, mark := range []string{"removing", "removed", "removed", ""} {
		if err := v.MarkReset(pod.UID, mark); err != nil {
			t.Fatal(err)
		}
		want(mark, true)
	}
	for range 2 {
		if err := v.UnmarkReset(pod.UID); err != nil {
			t.Fatal(err)
		}
		want("", false)
	}
	if err := v.MarkReset(pod.UID, "removing"); err != nil {
		t.Fatal(err)
	}
	if err := v.RemovePodDir(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	want("", false)
}
