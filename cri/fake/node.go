package fake

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Usage is what a container uses.
type Usage struct {
	CPUNanoSeconds, MemoryBytes uint64
}

// SetUsage sets what the stats calls tell of a container.
func (r *Runtime) SetUsage(containerID string, u Usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[containerID]; c != nil {
		c.usage = u
	}
}

// Version names the runtime.
func (r *Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeApiVersion: "v1",
		RuntimeName: cmp.Or(r.RuntimeName, "containerd"), RuntimeVersion: cmp.Or(r.RuntimeVersion, "v2.4.2")}, nil
}

// Status tells the conditions and one default runtime handler.
func (r *Runtime) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := &runtimeapi.RuntimeStatus{}
	for _, kind := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		st.Conditions = append(st.Conditions, proto.CloneOf(r.conditions[kind]))
	}
	return &runtimeapi.StatusResponse{Status: st, Features: &runtimeapi.RuntimeFeatures{},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Name: "", Features: &runtimeapi.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: true, UserNamespaces: true}}}}, nil
}

// RuntimeConfig tells the cgroup driver.
func (r *Runtime) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: r.CgroupDriver}}, nil
}

// UpdateRuntimeConfig takes anything.
func (r *Runtime) UpdateRuntimeConfig(context.Context, *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// UpdatePodSandboxResources takes anything.
func (r *Runtime) UpdatePodSandboxResources(context.Context, *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// ListContainerStats gives the usage of the running containers.
func (r *Runtime) ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.ListContainerStatsResponse{Stats: r.stats("")}, nil
}

// PodSandboxStats gives the usage of one sandbox.
func (r *Runtime) PodSandboxStats(_ context.Context, req *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.findSandbox(req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PodSandboxStatsResponse{Stats: r.sandboxStats(s)}, nil
}

// ListPodSandboxStats gives the usage of all ready sandboxes.
func (r *Runtime) ListPodSandboxStats(context.Context, *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	resp := &runtimeapi.ListPodSandboxStatsResponse{}
	for _, s := range r.sandboxes {
		if s.status.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			resp.Stats = append(resp.Stats, r.sandboxStats(s))
		}
	}
	slices.SortFunc(resp.Stats, func(a, b *runtimeapi.PodSandboxStats) int { return cmp.Compare(a.Attributes.Id, b.Attributes.Id) })
	return resp, nil
}

func (r *Runtime) sandboxStats(s *sandbox) *runtimeapi.PodSandboxStats {
	containers := r.stats(s.status.Id)
	var cpu, mem uint64
	for _, c := range containers {
		cpu += c.Cpu.UsageCoreNanoSeconds.Value
		mem += c.Memory.WorkingSetBytes.Value
	}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{Id: s.status.Id, Metadata: s.status.Metadata, Labels: s.status.Labels,
			Annotations: s.status.Annotations},
		Linux: &runtimeapi.LinuxPodSandboxStats{Cpu: cpuUsage(cpu), Memory: memoryUsage(mem), Containers: containers},
	}
}

// stats gives the usage of the running containers of a sandbox, of all where sandboxID is empty. r.mu is held.
func (r *Runtime) stats(sandboxID string) []*runtimeapi.ContainerStats {
	var all []*runtimeapi.ContainerStats
	for _, c := range r.containers {
		if sandboxID != "" && c.sandboxID != sandboxID || c.status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		all = append(all, &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{Id: c.status.Id, Metadata: c.status.Metadata, Labels: c.status.Labels,
				Annotations: c.status.Annotations},
			Cpu: cpuUsage(c.usage.CPUNanoSeconds), Memory: memoryUsage(c.usage.MemoryBytes),
		})
	}
	slices.SortFunc(all, func(a, b *runtimeapi.ContainerStats) int { return cmp.Compare(a.Attributes.Id, b.Attributes.Id) })
	return all
}

func cpuUsage(nanoSeconds uint64) *runtimeapi.CpuUsage {
	return &runtimeapi.CpuUsage{Timestamp: time.Now().UnixNano(), UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: nanoSeconds}}
}

func memoryUsage(bytes uint64) *runtimeapi.MemoryUsage {
	return &runtimeapi.MemoryUsage{Timestamp: time.Now().UnixNano(), WorkingSetBytes: &runtimeapi.UInt64Value{Value: bytes}}
}
