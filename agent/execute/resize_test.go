package execute

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podcgroups"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
)

// bareStats is a runtime that reports no memory of pods. It records the resources that pods get.
type bareStats struct {
	Runtime
	got *[]*runtimeapi.UpdatePodSandboxResourcesRequest
}

func (bareStats) PodSandboxStats(context.Context, string) (*runtimeapi.PodSandboxStats, error) {
	return &runtimeapi.PodSandboxStats{Linux: &runtimeapi.LinuxPodSandboxStats{}}, nil
}

func (b bareStats) UpdatePodSandboxResources(
	_ context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest,
) error {
	*b.got = append(*b.got, r)
	return nil
}

// usedCgroups uses 1000 bytes of memory, and records the last size unless it fails.
type usedCgroups struct {
	podcgroups.None
	size podstate.Size
	fail error
}

func (*usedCgroups) MemoryUsage(*corev1.Pod) (uint64, error) { return 1000, nil }

func (*usedCgroups) ContainerMemory(_ *corev1.Pod, id string) (uint64, bool) {
	return 1000, id == "app-1"
}

func (c *usedCgroups) Resize(_ *corev1.Pod, to podstate.Size) error {
	if c.fail == nil {
		c.size = to
	}
	return c.fail
}

// resized is a runtime that resizes containers.
type resized struct{ Runtime }

func (resized) UpdateContainerResources(context.Context, string, *runtimeapi.LinuxContainerResources) error {
	return nil
}

// protectedCgroups has the memory that the cgroup of the pod protects.
type protectedCgroups struct {
	podcgroups.None
	node   *spec.Node
	memory string
}

func (c *protectedCgroups) Prepare(pod *corev1.Pod) (*podstate.Size, error) {
	want := spec.PodCgroup(pod, c.node)
	c.memory = want.Unified(want.Size.Memory)["memory.low"]
	return &want.Size, nil
}

// TestResizeOfRequestProtectsPod checks that the cgroup of a pod protects what a container requests after a resize that
// leaves the limits, and so the size of that cgroup, as they are.
func TestResizeOfRequestProtectsPod(t *testing.T) {
	node := &spec.Node{CgroupV2: true, MemoryQoS: &spec.MemoryQoS{Tiered: true, PageSize: 4096}}
	pod := func(request string) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app",
			Resources: corev1.ResourceRequirements{Requests: resources("1", request), Limits: resources("1", "2Gi")}}}}}
	}
	c := &protectedCgroups{node: node}
	x := New(Backends{Runtime: resized{}, Cgroups: c, Node: func() *spec.Node { return node }})
	if _, err := c.Prepare(pod("100Mi")); err != nil || c.memory != "104857600" {
		t.Errorf("before: got %v, and %s bytes are protected, want 100Mi", err, c.memory)
	}
	step := podstate.Resize{ID: "app-1", Name: "app"}
	if _, err := x.resizes.container(t.Context(), &Task{Step: step, Pod: pod("1Gi")}, step); err != nil {
		t.Error(err)
	}
	if c.memory != "1073741824" {
		t.Errorf("after the resize: %s bytes are protected, want 1Gi", c.memory)
	}
}

// TestPodUsageComesFromItsCgroup checks that a pod's memory limit can become smaller although the runtime reports no
// memory of pods, but not smaller than what the pod uses.
func TestPodUsageComesFromItsCgroup(t *testing.T) {
	c := &usedCgroups{}
	runtime := bareStats{got: &[]*runtimeapi.UpdatePodSandboxResourcesRequest{}}
	x := New(Backends{Runtime: runtime, Cgroups: c, Node: func() *spec.Node { return &spec.Node{} }})
	task := &Task{Pod: &corev1.Pod{}, Sandbox: &podstate.Sandbox{ID: "box"}}
	err := x.resizes.pod(t.Context(), task, podstate.ResizePod{To: podstate.Size{Memory: 2000}, LowersMemory: true})
	if err != nil || c.size.Memory != 2000 {
		t.Errorf("above the usage: got %v and the limit %d, want 2000", err, c.size.Memory)
	}
	err = x.resizes.pod(t.Context(), task, podstate.ResizePod{To: podstate.Size{Memory: 900}, LowersMemory: true})
	if err == nil || !strings.Contains(err.Error(), "below current usage") || c.size.Memory != 2000 {
		t.Errorf("below the usage: got %v and the limit %d, want an error and 2000", err, c.size.Memory)
	}
}

// TestContainerUsageComesFromItsCgroup checks that the runtime is asked what a container uses only if the container has
// no cgroup: CRI-O waits for another container of the pod that is being stopped, and crashes if one has just ended.
func TestContainerUsageComesFromItsCgroup(t *testing.T) {
	x := New(Backends{Runtime: bareStats{}, Cgroups: &usedCgroups{}, Node: func() *spec.Node { return &spec.Node{} }})
	task := &Task{Pod: &corev1.Pod{}, Sandbox: &podstate.Sandbox{ID: "box"}}
	if used, err := x.resizes.containerUsage(t.Context(), task, "app-1"); used != 1000 || err != nil {
		t.Errorf("with a cgroup: got %d and %v, want 1000", used, err)
	}
	if used, err := x.resizes.containerUsage(t.Context(), task, "guest-1"); err == nil {
		t.Errorf("without a cgroup: got %d, want the error of the runtime", used)
	}
}

// TestRuntimeGetsSizeOfStep checks that the runtime hears of the size that the pod's cgroup gets, without the overhead:
// not of the final one, which the containers may never reach. If the cgroup keeps its size, so does the runtime.
func TestRuntimeGetsSizeOfStep(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Overhead: resources("100m", "1Ki"),
		Containers: []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{
			Requests: resources("2", "1Ki"), Limits: resources("2", "1Ki")}}},
	}}
	has := podstate.Size{Shares: 1126, Quota: 110000, Period: 100000, Memory: 3 << 10}
	to := podstate.Size{Shares: 2150, Quota: 210000, Period: 100000, Memory: 3 << 10}
	before, after := sandboxSize{1024, 100000, 100000, 2 << 10}, sandboxSize{2048, 200000, 100000, 2 << 10}
	for name, c := range map[string]struct {
		fail error
		to   podstate.Size
		want []sandboxSize
	}{
		"the cgroup takes it":   {nil, to, []sandboxSize{after}},
		"the cgroup refuses":    {errors.New("busy"), to, []sandboxSize{after, before}},
		"it loses its limits":   {nil, podstate.Size{Shares: 2150}, []sandboxSize{{2048, -1, 100000, -1}}},
		"it has no CPU request": {nil, podstate.Size{Shares: 2}, []sandboxSize{{2, -1, 100000, -1}}},
	} {
		runtime := bareStats{got: &[]*runtimeapi.UpdatePodSandboxResourcesRequest{}}
		x := New(Backends{Runtime: runtime, Cgroups: &usedCgroups{fail: c.fail},
			Node: func() *spec.Node { return &spec.Node{Limits: spec.Limits{CPUCFSQuota: true}} }})
		step := podstate.ResizePod{To: c.to}
		task := &Task{Step: step, Pod: pod, Sandbox: &podstate.Sandbox{ID: "box"}}
		memory, left := podstate.Memory{PodSize: &has}, NewResults()
		x.Begin(t.Context(), task, &left, memory.Recall(), nil)
		if err := x.resizes.pod(t.Context(), task, step); !errors.Is(err, c.fail) {
			t.Errorf("%s: got %v, want %v", name, err, c.fail)
		}
		var got []sandboxSize
		for _, r := range *runtime.got {
			l := r.Resources
			got = append(got, sandboxSize{l.CpuShares, l.CpuQuota, l.CpuPeriod, l.MemoryLimitInBytes})
			if r.PodSandboxId != "box" || r.Overhead.MemoryLimitInBytes != 1<<10 || r.Overhead.CpuQuota != 10000 {
				t.Errorf("%s: got %v, want the pod's sandbox and overhead", name, r)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: the runtime got %v, want %v", name, got, c.want)
		}
	}
}

// sandboxSize is what the runtime gets for a pod: CPU shares, CPU quota and its period, and memory.
type sandboxSize struct{ shares, quota, period, memory int64 }

func resources(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}
