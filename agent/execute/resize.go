package execute

import (
	"context"
	"errors"
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
		return now, fmt.Errorf("container %q is no longer in the spec of the pod", s.Name)
	}
	r := spec.ContainerResources(t.Pod, c, x.Node())
	if s.LowersMemory {
		used := func() (uint64, error) { return x.containerUsage(ctx, t, s.ID) }
		if err := fits(fmt.Sprintf("container %q", s.Name), r.MemoryLimitInBytes, used); err != nil {
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
	if err := x.Runtime.UpdateContainerResources(ctx, s.ID, r); err != nil {
		return now, err
	}
	// The kernel protects the container's memory only as far as that of the pod. The pod's cgroup keeps its size.
	if _, err := x.Cgroups.Prepare(t.Pod); err != nil {
		return now, fmt.Errorf("protect the memory of the pod: %w", err)
	}
	return spec.EffectiveResources(t.Pod, c), nil
}

// mayHave returns the limits that an instance has, or any if they are not known.
func mayHave(c *podstate.Container) podstate.Size {
	if c == nil || c.Size == nil {
		return podstate.Size{Quota: 1, Memory: 1}
	}
	return *c.Size
}

// pod resizes the pod's cgroup. The runtime is called first, so that its plugins may refuse. It gets the size before
// again if the cgroup keeps that.
func (x *resizes) pod(ctx context.Context, t *Task, s podstate.ResizePod) error {
	if s.LowersMemory {
		used := func() (uint64, error) { return x.Cgroups.MemoryUsage(t.Pod) }
		if err := fits("pod", s.To.Memory, used); err != nil {
			return err
		}
	}
	if err := x.sandbox(ctx, t, s.To); err != nil {
		return err
	}
	err := x.Cgroups.Resize(t.Pod, s.To)
	if err != nil && t.has != (podstate.Size{}) {
		if err := x.sandbox(ctx, t, t.has); err != nil {
			t.Log.Warn("the runtime does not take back the resize of the pod", "err", err)
		}
	}
	return err
}

// sandbox passes the size of the pod's cgroup to the runtime, if the pod has a sandbox.
func (x *resizes) sandbox(ctx context.Context, t *Task, size podstate.Size) error {
	if t.Sandbox == nil {
		return nil
	}
	resources, overhead := spec.ResizedSandbox(t.Pod, x.Node(), size)
	err := x.Runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: t.Sandbox.ID, Resources: resources, Overhead: overhead})
	if cri.IsUnimplemented(err) || err != nil && strings.Contains(cri.Message(err), "not implemented") {
		return nil
	}
	return err
}

// fits returns an error unless less memory is used than a new limit: otherwise the kernel would kill processes.
func fits(what string, limit int64, used func() (uint64, error)) error {
	if limit <= 0 {
		return nil
	}
	usage, err := used()
	if err != nil {
		return fmt.Errorf("cannot decrease memory limits: read memory usage of %s: %w", what, err)
	}
	if usage >= uint64(limit) {
		return fmt.Errorf("cannot decrease memory limits: attempting to set %s memory limit (%d) below current usage (%d)",
			what, limit, usage)
	}
	return nil
}

// containerUsage returns how much memory a container uses, by its cgroup. It asks the runtime only if there is none, as
// for one in a virtual machine: CRI-O looks at all containers of the pod then, waits for one that is being stopped, and
// crashes if one has just ended.
func (x *resizes) containerUsage(ctx context.Context, t *Task, id string) (uint64, error) {
	if used, ok := x.Cgroups.ContainerMemory(t.Pod, id); ok || t.Sandbox == nil {
		return used, nil
	}
	stats, err := x.Runtime.PodSandboxStats(ctx, t.Sandbox.ID)
	if err != nil {
		return 0, err
	}
	for _, c := range stats.GetLinux().GetContainers() {
		if usage := c.GetMemory().GetUsageBytes(); c.GetAttributes().GetId() == id && usage != nil {
			return usage.Value, nil
		}
	}
	return 0, errors.New("the runtime does not report it")
}
