package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListPodSandboxStats returns the usage of all pods and their containers in one call. Runtimes without it answer with
// an error that IsUnimplemented reports.
func (c *Client) ListPodSandboxStats(ctx context.Context) ([]*runtimeapi.PodSandboxStats, error) {
	resp, err := do(ctx, c, op{"ListPodSandboxStats", "", c.timeout}, c.runtime.ListPodSandboxStats,
		&runtimeapi.ListPodSandboxStatsRequest{})
	return resp.GetStats(), err
}

// PodSandboxStats returns the usage of one sandbox and its containers.
func (c *Client) PodSandboxStats(ctx context.Context, id string) (*runtimeapi.PodSandboxStats, error) {
	resp, err := do(ctx, c, op{"PodSandboxStats", id, c.timeout}, c.runtime.PodSandboxStats,
		&runtimeapi.PodSandboxStatsRequest{PodSandboxId: id})
	return resp.GetStats(), err
}

// ListContainerStats returns the usage of all containers.
func (c *Client) ListContainerStats(ctx context.Context) ([]*runtimeapi.ContainerStats, error) {
	resp, err := do(ctx, c, op{"ListContainerStats", "", c.timeout}, c.runtime.ListContainerStats,
		&runtimeapi.ListContainerStatsRequest{})
	return resp.GetStats(), err
}

// PodContainerStats returns the usage of the containers of the pod with this UID, in any of its sandboxes.
func (c *Client) PodContainerStats(ctx context.Context, pod string) ([]*runtimeapi.ContainerStats, error) {
	resp, err := do(ctx, c, op{"ListContainerStats", "", c.timeout}, c.runtime.ListContainerStats,
		&runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{
			LabelSelector: map[string]string{labelPodUID: pod},
		}})
	return resp.GetStats(), err
}

// ListPodSandboxMetrics returns the runtime's own metrics of all pods, for /metrics/cadvisor (KEP-2371).
func (c *Client) ListPodSandboxMetrics(ctx context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	resp, err := do(ctx, c, op{"ListPodSandboxMetrics", "", c.timeout}, c.runtime.ListPodSandboxMetrics,
		&runtimeapi.ListPodSandboxMetricsRequest{})
	return resp.GetPodMetrics(), err
}

// ListMetricDescriptors returns names, help texts and labels of the metrics of ListPodSandboxMetrics.
func (c *Client) ListMetricDescriptors(ctx context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	resp, err := do(ctx, c, op{"ListMetricDescriptors", "", c.timeout}, c.runtime.ListMetricDescriptors,
		&runtimeapi.ListMetricDescriptorsRequest{})
	return resp.GetDescriptors(), err
}
