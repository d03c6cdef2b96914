package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// stats asks for what pods and containers use. Its methods are those of Client.
type stats struct {
	*caller
	service runtimeapi.RuntimeServiceClient
}

// ListPodSandboxStats returns the usage of all pods and their containers in one call. Runtimes without it answer with
// an error that IsUnimplemented reports.
func (s *stats) ListPodSandboxStats(ctx context.Context) ([]*runtimeapi.PodSandboxStats, error) {
	resp, err := do(ctx, s.caller, "ListPodSandboxStats", "", s.service.ListPodSandboxStats,
		&runtimeapi.ListPodSandboxStatsRequest{})
	return resp.GetStats(), err
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
			LabelSelector: map[string]string{labelPodUID: pod},
		}})
	return resp.GetStats(), err
}

// ListPodSandboxMetrics returns the runtime's own metrics of all pods, for /metrics/cadvisor (KEP-2371).
func (s *stats) ListPodSandboxMetrics(ctx context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	resp, err := do(ctx, s.caller, "ListPodSandboxMetrics", "", s.service.ListPodSandboxMetrics,
		&runtimeapi.ListPodSandboxMetricsRequest{})
	return resp.GetPodMetrics(), err
}

// ListMetricDescriptors returns names, help texts and labels of the metrics of ListPodSandboxMetrics.
func (s *stats) ListMetricDescriptors(ctx context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	resp, err := do(ctx, s.caller, "ListMetricDescriptors", "", s.service.ListMetricDescriptors,
		&runtimeapi.ListMetricDescriptorsRequest{})
	return resp.GetDescriptors(), err
}
