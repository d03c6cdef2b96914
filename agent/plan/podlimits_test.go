package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/agent/podstate"
)

// TestLimitsOfThePodAreShown checks that the status of a running container that has a limit shows that of the pod for
// what it does not limit, as with the kubelet, and that the agent recognizes it after a restart.
func TestLimitsOfThePodAreShown(t *testing.T) {
	cpu, memory := resource.MustParse("1"), resource.MustParse("64Mi")
	onlyCPU := corev1.ResourceList{corev1.ResourceCPU: cpu}
	onlyMemory := corev1.ResourceList{corev1.ResourceMemory: memory}
	both := corev1.ResourceList{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory}
	for _, c := range []struct {
		own, want corev1.ResourceList
		quota     int64
	}{
		{nil, nil, 100000},
		{onlyCPU, both, 100000},
		{onlyMemory, both, 100000},
		{onlyMemory, onlyMemory, 0}, // its CPUs are its own
	} {
		r := newResized(t, [2]int64{100, 100}, [2]int64{100, 100})
		a := &r.d.Pod.Spec.Containers[0]
		a.Resources.Requests, a.Resources.Limits = nil, c.own
		size := podstate.Size{Shares: 1024, Quota: c.quota, Period: 100000, Memory: 64 << 20}
		has := podstate.ContainerAllocation{Size: size, Resources: corev1.ResourceRequirements{Limits: both}}
		r.d.Allocation.Containers["a"] = has
		r.o.Containers[0].Size, r.o.Containers[0].Made = &size, &has.Resources
		for range 2 {
			got := r.check(t).Status.ContainerStatuses[0].Resources.Limits
			if !equality.Semantic.DeepEqual(got, c.want) {
				t.Errorf("limits %v, quota %d: got %v, want %v", c.own, c.quota, got, c.want)
			}
			r.restart()
		}
	}
}
