package spec

import (
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
