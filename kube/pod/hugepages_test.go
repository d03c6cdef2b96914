package pod_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func TestHugePages(t *testing.T) {
	for name, want := range map[corev1.ResourceName]int64{
		"hugepages-2Mi": 2 << 20, "hugepages-1Gi": 1 << 30, "hugepages-64Ki": 64 << 10, "hugepages-": 0, "hugepages-x": 0,
		"hugepages-0": 0, "hugepages--1Mi": 0, "memory": 0, "hugepages": 0,
	} {
		got, ok := podutil.HugePageSize(name)
		if got != want || ok != (want > 0) {
			t.Errorf("%s: got %d, %v", name, got, ok)
		}
		if ok && podutil.HugePages(got) != name {
			t.Errorf("%d: got %s, want %s", got, podutil.HugePages(got), name)
		}
	}
}
