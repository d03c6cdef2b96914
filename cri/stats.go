package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// stats asks for what pods and containers use. Its methods are those of Client.
type stats struct {
	*caller
	service runtimeapi.RuntimeServiceClient
}

// PodSandboxStats returns the usage of one sandbox and its containers.
func (s *stats) PodSandboxStats(ctx context.Context, id string) (*runtimeapi.PodSandboxStats, error) {
	resp, err := do(ctx, s.caller, "PodSandboxStats", id, s.service.PodSandboxStats,
		&runtimeapi.PodSandboxStatsRequest{PodSandboxId: id})
	return resp.GetStats(), err
}

// ListContainerStats returns the usage of all containers.
func (s *stats) ListContainerStats(ctx context.Context) ([]*runtimeapi.ContainerStats, error) {
	return listed(ctx, s.caller, "ListContainerStats", "",
		s.service.StreamContainerStats, &runtimeapi.StreamContainerStatsRequest{},
		(*runtimeapi.StreamContainerStatsResponse).GetContainerStats,
		s.service.ListContainerStats, &runtimeapi.ListContainerStatsRequest{},
		(*runtimeapi.ListContainerStatsResponse).GetStats)
}

// PodContainerStats returns the usage of the containers of the pod with this UID, in any of its sandboxes.
func (s *stats) PodContainerStats(ctx context.Context, pod string) ([]*runtimeapi.ContainerStats, error) {
	resp, err := do(ctx, s.caller, "ListContainerStats", "", s.service.ListContainerStats,
		&runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{
			LabelSelector: map[string]string{podutil.LabelPodUID: pod},
		}})
	return resp.GetStats(), err
}
