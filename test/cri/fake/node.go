package fake

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	pb "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Usage is what a container uses.
type Usage struct {
	CPUNanoSeconds, MemoryBytes uint64
}

// SetUsage sets what the stats calls return for a container.
func (r *state) SetUsage(containerID string, u Usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[containerID]; c != nil {
		c.usage = u
	}
}

// Version names the runtime.
func (r *Runtime) Version(context.Context, *pb.VersionRequest) (*pb.VersionResponse, error) {
	return &pb.VersionResponse{Version: "0.1.0", RuntimeApiVersion: "v1",
		RuntimeName: cmp.Or(r.RuntimeName, "containerd"), RuntimeVersion: cmp.Or(r.RuntimeVersion, "v2.4.2")}, nil
}

// Status returns the conditions and one default runtime handler.
func (r *Runtime) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := &pb.RuntimeStatus{}
	for _, kind := range slices.Sorted(maps.Keys(r.conditions)) {
		st.Conditions = append(st.Conditions, proto.CloneOf(r.conditions[kind]))
	}
	return &pb.StatusResponse{Status: st, Info: r.Info, Features: &pb.RuntimeFeatures{},
		RuntimeHandlers: []*pb.RuntimeHandler{{Name: "", Features: &pb.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: true, UserNamespaces: true}}}}, nil
}

// RuntimeConfig returns the cgroup driver.
func (r *Runtime) RuntimeConfig(context.Context, *pb.RuntimeConfigRequest) (*pb.RuntimeConfigResponse, error) {
	return &pb.RuntimeConfigResponse{Linux: &pb.LinuxRuntimeConfiguration{CgroupDriver: r.CgroupDriver}}, nil
}

// UpdateRuntimeConfig takes anything.
func (r *Runtime) UpdateRuntimeConfig(context.Context,
	*pb.UpdateRuntimeConfigRequest) (*pb.UpdateRuntimeConfigResponse, error) {
	return &pb.UpdateRuntimeConfigResponse{}, nil
}

// UpdatePodSandboxResources takes anything.
func (r *Runtime) UpdatePodSandboxResources(context.Context,
	*pb.UpdatePodSandboxResourcesRequest) (*pb.UpdatePodSandboxResourcesResponse, error) {
	return &pb.UpdatePodSandboxResourcesResponse{}, nil
}

// ListContainerStats gives the usage of the running containers.
func (r *Runtime) ListContainerStats(context.Context,
	*pb.ListContainerStatsRequest) (*pb.ListContainerStatsResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &pb.ListContainerStatsResponse{Stats: r.stats("")}, nil
}

// PodSandboxStats gives the usage of one sandbox.
func (r *Runtime) PodSandboxStats(_ context.Context,
	req *pb.PodSandboxStatsRequest) (*pb.PodSandboxStatsResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.findSandbox(req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	return &pb.PodSandboxStatsResponse{Stats: r.sandboxStats(s)}, nil
}

func (r *state) sandboxStats(s *sandbox) *pb.PodSandboxStats {
	containers := r.stats(s.status.Id)
	var cpu, mem uint64
	for _, c := range containers {
		cpu += c.Cpu.UsageCoreNanoSeconds.Value
		mem += c.Memory.WorkingSetBytes.Value
	}
	return &pb.PodSandboxStats{
		Attributes: &pb.PodSandboxAttributes{Id: s.status.Id, Metadata: s.status.Metadata, Labels: s.status.Labels,
			Annotations: s.status.Annotations},
		Linux: &pb.LinuxPodSandboxStats{Cpu: cpuUsage(cpu), Memory: memoryUsage(mem), Containers: containers},
	}
}

// stats gives the usage of the running containers of a sandbox, of all where sandboxID is empty. r.mu is held.
func (r *state) stats(sandboxID string) []*pb.ContainerStats {
	var all []*pb.ContainerStats
	for _, c := range r.containers {
		if sandboxID != "" && c.sandboxID != sandboxID || c.status.State != pb.ContainerState_CONTAINER_RUNNING {
			continue
		}
		all = append(all, &pb.ContainerStats{
			Attributes: &pb.ContainerAttributes{Id: c.status.Id, Metadata: c.status.Metadata, Labels: c.status.Labels,
				Annotations: c.status.Annotations},
			Cpu: cpuUsage(c.usage.CPUNanoSeconds), Memory: memoryUsage(c.usage.MemoryBytes),
		})
	}
	slices.SortFunc(all, func(a, b *pb.ContainerStats) int { return cmp.Compare(a.Attributes.Id, b.Attributes.Id) })
	return all
}

func cpuUsage(nanoSeconds uint64) *pb.CpuUsage {
	return &pb.CpuUsage{Timestamp: time.Now().UnixNano(), UsageCoreNanoSeconds: &pb.UInt64Value{Value: nanoSeconds}}
}

func memoryUsage(bytes uint64) *pb.MemoryUsage {
	return &pb.MemoryUsage{Timestamp: time.Now().UnixNano(), WorkingSetBytes: &pb.UInt64Value{Value: bytes},
		UsageBytes: &pb.UInt64Value{Value: bytes}}
}
