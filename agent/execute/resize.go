package execute

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// noBound removes a limit; for the CRI, 0 means no change.
const noBound = -1

// resizes changes the CPU and memory of running containers and pods.
type resizes struct {
	*Backends
}

// container applies the resources of the spec to a running container and returns them.
func (x *resizes) container(ctx context.Context, t *Task, s podstate.Resize) (
	now corev1.ResourceRequirements, err error) {
	_, c := podutil.Container(&t.Pod.Spec, s.Name)
	if c == nil {
		return now, fmt.Errorf("container %q is no longer in the pod spec", s.Name)
	}
	r := spec.ContainerResources(t.Pod, c, x.Node())
	if s.LowersMemory {
		what := fmt.Sprintf("container %q", s.Name)
		if err := x.memoryFits(ctx, t.Sandbox, s.ID, what, r.MemoryLimitInBytes); err != nil {
			return now, err
		}
	}
	has := mayHave(t.instance(s.ID))
	if r.MemoryLimitInBytes == 0 && has.Memory > 0 {
		r.MemoryLimitInBytes = noBound // CRI-O removes no memory limit, and refuses the whole call
	}
	if r.CpuQuota == 0 && (x.Node().CPUCFSQuota || has.Quota > 0) {
		r.CpuQuota = noBound // else a kernel without CFS bandwidth control may have no file for it
	}
	return spec.EffectiveResources(t.Pod, c), x.Runtime.UpdateContainerResources(ctx, s.ID, r)
}

// mayHave returns the limits that an instance has, or any if they are not known.
func mayHave(c *podstate.Container) podstate.Size {
	if c == nil || c.Size == nil {
		return podstate.Size{Quota: 1, Memory: 1}
	}
	return *c.Size
}

// pod resizes the pod's cgroup. The runtime is called first, so that its plugins may refuse.
func (x *resizes) pod(ctx context.Context, t *Task, s podstate.ResizePod) error {
	if s.LowersMemory {
		if err := x.memoryFits(ctx, t.Sandbox, "", "pod", s.To.Memory); err != nil {
			return err
		}
	}
	if t.Sandbox != nil {
		resources, overhead := spec.SandboxResources(t.Pod, x.Node())
		err := x.Runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
			PodSandboxId: t.Sandbox.ID, Resources: resources, Overhead: overhead})
		if err != nil && !cri.IsUnimplemented(err) && !strings.Contains(cri.Message(err), "not implemented") {
			return err
		}
	}
	return x.Cgroups.Resize(t.Pod, s.To)
}

// memoryFits returns an error unless a container, or the pod if id is empty, uses less memory than its new limit:
// otherwise the kernel would kill processes.
func (x *resizes) memoryFits(ctx context.Context, sandbox *podstate.Sandbox, id, what string, limit int64) error {
	if sandbox == nil || limit <= 0 {
		return nil
	}
	stats, err := x.Runtime.PodSandboxStats(ctx, sandbox.ID)
	if err != nil {
		return fmt.Errorf("cannot decrease memory limits: read memory usage: %w", err)
	}
	usage := stats.GetLinux().GetMemory().GetUsageBytes()
	if id != "" {
		usage = nil
		for _, c := range stats.GetLinux().GetContainers() {
			if c.GetAttributes().GetId() == id {
				usage = c.GetMemory().GetUsageBytes()
			}
		}
	}
	if usage == nil {
		return fmt.Errorf("cannot decrease memory limits: missing %s memory usage", what)
	}
	if usage.Value >= uint64(limit) {
		return fmt.Errorf("cannot decrease memory limits: attempting to set %s memory limit (%d) below current usage (%d)",
			what, limit, usage.Value)
	}
	return nil
}
