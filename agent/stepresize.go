package agent

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/host/cgroups"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// noBound removes a limit; for the CRI and the kernel, 0 means no change.
const noBound = -1

// resize applies the resources of the spec to a running container and returns them.
func (t *task) resize(ctx context.Context, s podstate.Resize) (now corev1.ResourceRequirements, err error) {
	_, c := podutil.Container(&t.pod.Spec, s.Name)
	if c == nil {
		return now, fmt.Errorf("container %q is no longer in the pod spec", s.Name)
	}
	r := spec.ContainerResources(t.pod, c, t.backends.Node())
	if s.LowersMemory {
		if err := t.memoryFits(ctx, s.ID, fmt.Sprintf("container %q", s.Name), r.MemoryLimitInBytes); err != nil {
			return now, err
		}
	}
	if r.MemoryLimitInBytes == 0 {
		r.MemoryLimitInBytes = noBound
	}
	if r.CpuQuota == 0 {
		r.CpuQuota = noBound
	}
	return spec.EffectiveResources(t.pod, c), t.backends.Runtime.UpdateContainerResources(ctx, s.ID, r)
}

// resizePod resizes the pod's cgroup. The runtime is called first, so that its plugins may refuse.
func (t *task) resizePod(ctx context.Context, s podstate.ResizePod) error {
	if s.LowersMemory {
		if err := t.memoryFits(ctx, "", "pod", s.To.Memory); err != nil {
			return err
		}
	}
	if t.sandbox != nil {
		resources, overhead := spec.SandboxResources(t.pod, t.backends.Node())
		err := t.backends.Runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
			PodSandboxId: t.sandbox.ID, Resources: resources, Overhead: overhead})
		if err != nil && !cri.IsUnimplemented(err) && !strings.Contains(cri.Message(err), "not implemented") {
			return err
		}
	}
	r := cgroups.Resources{CPUShares: uint64(s.To.Shares), CPUQuota: noBound, Memory: noBound,
		Unified: spec.PodCgroup(t.pod, t.backends.Node()).Unified}
	if s.To.Quota > 0 {
		r.CPUQuota, r.CPUPeriod = s.To.Quota, uint64(s.To.Period)
	}
	if s.To.Memory > 0 {
		r.Memory = s.To.Memory
	}
	return t.backends.Cgroups.UpdatePod(cgroups.Pod{UID: t.pod.UID, QOS: podutil.QOS(t.pod)}, r)
}

// memoryFits returns an error unless a container, or the pod if id is empty, uses less memory than its new limit:
// otherwise the kernel would kill processes.
func (t *task) memoryFits(ctx context.Context, id, what string, limit int64) error {
	if t.sandbox == nil || limit <= 0 {
		return nil
	}
	stats, err := t.backends.Runtime.PodSandboxStats(ctx, t.sandbox.ID)
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

// preparePodCgroup creates the pod's cgroup. It keeps the size of an existing cgroup, because resizes have their own
// order.
func (t *task) preparePodCgroup() (*podstate.Size, error) {
	node := t.backends.Node()
	if node.Cgroups.Flat {
		return nil, nil
	}
	want := spec.PodCgroup(t.pod, node)
	r := cgroups.Resources{CPUShares: uint64(want.CPUShares), HugePages: want.Hugepages, Unified: want.Unified}
	if want.CPUQuota != nil {
		r.CPUQuota, r.CPUPeriod = *want.CPUQuota, uint64(*want.CPUPeriod)
	}
	if want.Memory != nil {
		r.Memory = *want.Memory
	}
	if want.Pids != nil {
		r.Pids = *want.Pids
	}
	pod := cgroups.Pod{UID: t.pod.UID, QOS: podutil.QOS(t.pod)}
	has, there, err := t.backends.Cgroups.PodSize(pod, r)
	if err != nil {
		return nil, err
	}
	if !there {
		size := podSize(t.pod, node)
		_, err := t.backends.Cgroups.CreatePod(pod, r)
		return &size, err
	}
	rest := cgroups.Resources{HugePages: r.HugePages, Pids: r.Pids, Unified: r.Unified}
	size := &podstate.Size{
		Shares: int64(has.CPUShares),
		Quota:  has.CPUQuota,
		Period: int64(has.CPUPeriod),
		Memory: has.Memory,
	}
	return size, t.backends.Cgroups.UpdatePod(pod, rest)
}

// resizeEvents records an event when a resize has completed or failed.
func (w *worker) resizeEvents(st *corev1.PodStatus) {
	if w.memory.Reported == nil || w.desired.Stop != nil || w.desired.Grant == nil {
		return
	}
	before, now := resizeCondition(w.memory.Reported), resizeCondition(st)
	record := func(eventType, reason, what, trouble string, generation int64) {
		pod := w.desired.Pod
		w.backends.Events.Event(podReference(pod, ""), eventType, reason, what+": "+resizeSummary(pod, generation, trouble))
	}
	switch {
	case before != nil && now == nil:
		record(corev1.EventTypeNormal, "ResizeCompleted", "Pod resize completed", "", before.ObservedGeneration)
	case now != nil && now.Reason == corev1.PodReasonError && (before == nil || before.Message != now.Message):
		record(corev1.EventTypeWarning, "ResizeError", "Pod resize error", now.Message, now.ObservedGeneration)
	}
}

func resizeCondition(st *corev1.PodStatus) *corev1.PodCondition {
	for i := range st.Conditions {
		if c := &st.Conditions[i]; c.Type == corev1.PodResizeInProgress {
			return c
		}
	}
	return nil
}
