package execute

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podcgroups"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
)

// bareStats is a runtime that reports no memory of pods.
type bareStats struct{ Runtime }

func (bareStats) PodSandboxStats(context.Context, string) (*runtimeapi.PodSandboxStats, error) {
	return &runtimeapi.PodSandboxStats{Linux: &runtimeapi.LinuxPodSandboxStats{}}, nil
}

func (bareStats) UpdatePodSandboxResources(context.Context, *runtimeapi.UpdatePodSandboxResourcesRequest) error {
	return nil
}

// usedCgroups uses 1000 bytes of memory, and records the last size.
type usedCgroups struct {
	podcgroups.None
	size podstate.Size
}

func (*usedCgroups) MemoryUsage(*corev1.Pod) (uint64, error) { return 1000, nil }

func (c *usedCgroups) Resize(_ *corev1.Pod, to podstate.Size) error {
	c.size = to
	return nil
}

// TestPodUsageComesFromItsCgroup checks that a pod's memory limit can become smaller although the runtime reports no
// memory of pods, but not smaller than what the pod uses.
func TestPodUsageComesFromItsCgroup(t *testing.T) {
	c := &usedCgroups{}
	x := New(Backends{Runtime: bareStats{}, Cgroups: c, Node: func() *spec.Node { return &spec.Node{} }})
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
