package spec

import (
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
)

// SizeOf returns the size that the resources of a container mean.
func SizeOf(r *runtimeapi.LinuxContainerResources) podstate.Size {
	return podstate.Size{
		Shares: r.GetCpuShares(),
		Quota:  r.GetCpuQuota(),
		Period: r.GetCpuPeriod(),
		Memory: r.GetMemoryLimitInBytes(),
	}
}

// PodSize returns the size of the pod's own cgroup.
func PodSize(pod *corev1.Pod, node *Node) podstate.Size {
	want := PodCgroup(pod, node)
	size := podstate.Size{Shares: want.CPUShares}
	if want.CPUQuota != nil {
		size.Quota, size.Period = *want.CPUQuota, *want.CPUPeriod
	}
	if want.Memory != nil {
		size.Memory = *want.Memory
	}
	return size
}
