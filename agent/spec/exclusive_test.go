package spec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestExclusiveCPUsHaveNoQuota checks that containers with CPUs of their own have no CFS quota, and neither has the
// cgroup of their pod. Containers that could have CPUs and have none keep it.
func TestExclusiveCPUsHaveNoQuota(t *testing.T) {
	node := &Node{Limits: Limits{CPUCFSQuota: true}, Managers: Managers{StaticCPU: true, NoQuota: true}}
	node.Managers.HasCPUs = func(_ *corev1.Pod, c *corev1.Container) bool { return c.Name == "alone" }
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "alone", Resources: requirements("2", "1Gi", "2", "1Gi")},
		{Name: "shares", Resources: requirements("500m", "1Gi", "500m", "1Gi")},
	}}}
	quotas := func() [4]int64 {
		sandbox, _ := SandboxResources(pod, node)
		return [4]int64{
			ContainerResources(pod, &pod.Spec.Containers[0], node).CpuQuota,
			ContainerResources(pod, &pod.Spec.Containers[1], node).CpuQuota,
			PodCgroup(pod, node).Size.Quota,
			sandbox.CpuQuota,
		}
	}
	if got, want := quotas(), [4]int64{-1, 50000, -1, -1}; got != want {
		t.Errorf("static CPUs: got quotas %v of containers, pod and sandbox, want %v", got, want)
	}
	node.Managers.NoQuota = false
	limited := [4]int64{200000, 50000, 250000, 250000}
	if got := quotas(); got != limited {
		t.Errorf("without the gate: got quotas %v, want %v", got, limited)
	}
	node.Managers = Managers{StaticCPU: true, NoQuota: true}
	node.Managers.HasCPUs = func(*corev1.Pod, *corev1.Container) bool { return false }
	if got := quotas(); got != limited {
		t.Errorf("no CPUs left: got quotas %v, want %v", got, limited)
	}
	node.Managers = Managers{NoQuota: true}
	if got := quotas(); got != limited {
		t.Errorf("without static CPUs: got quotas %v, want %v", got, limited)
	}
}
