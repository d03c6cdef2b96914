package podfs

import (
	"testing"
	"time"
)

// BenchmarkTokenPod is all the volume work of a pod which has its service account's token and nothing else,
// without the API call.
func BenchmarkTokenPod(b *testing.B) {
	v, pod := newVolumes(b), testPod()
	o := accessObjects(func() time.Time { return testNow })
	r := request(pod, "kube-api-access", apiAccess())
	b.ReportAllocs()
	for b.Loop() {
		if err := v.MakePodDir(pod.UID); err != nil {
			b.Fatal(err)
		}
		mustMount(b, v, r, o)
		b.StopTimer()
		tearDown(b, v, r)
		b.StartTimer()
	}
}

// BenchmarkRefresh is a Mount that finds everything as it should be.
func BenchmarkRefresh(b *testing.B) {
	v, pod := newVolumes(b), testPod()
	o := accessObjects(func() time.Time { return testNow })
	r := request(pod, "kube-api-access", apiAccess())
	mustMount(b, v, r, o)
	b.ReportAllocs()
	for b.Loop() {
		mustMount(b, v, r, o)
	}
}

// BenchmarkTearDown is Unmount and RemovePodDir of such a pod.
func BenchmarkTearDown(b *testing.B) {
	v, pod := newVolumes(b), testPod()
	o := accessObjects(func() time.Time { return testNow })
	r := request(pod, "kube-api-access", apiAccess())
	for b.Loop() {
		b.StopTimer()
		mustMount(b, v, r, o)
		b.StartTimer()
		tearDown(b, v, r)
	}
}

func tearDown(b *testing.B, v *FS, r Request) {
	found, err := v.List(r.Pod.UID)
	if err != nil || len(found) != 1 {
		b.Fatal(found, err)
	}
	if err := v.Unmount(b.Context(), r.Pod.UID, found[0]); err != nil {
		b.Fatal(err)
	}
	if err := v.RemovePodDir(b.Context(), r.Pod.UID); err != nil {
		b.Fatal(err)
	}
}
