package instruments

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/metrics"
	"github.com/nodelet/nodelet/metrics/exporter"
)

// Pods are the pods of the node: the agent's supervisor.
type Pods interface {
	SyncedPods(ctx context.Context) ([]agent.PodView, error)
}

// AddPods adds the numbers of pods, containers and volumes, and the version of the cgroup hierarchy.
func AddPods(e *exporter.Exporter, pods Pods, volumes Volumes, cgroupVersion int) {
	e.AddFamilies(func(ctx context.Context, t *metrics.Text) {
		if all, err := pods.SyncedPods(ctx); err == nil {
			c := count(all, volumes)
			c.write(t)
		}
		t.Gauge("kubelet_cgroup_version", "[ALPHA] cgroup version on the hosts.", float64(cgroupVersion))
	})
}

func gaugeByStatic(t *metrics.Text, name, help string, value [2]int) {
	t.Family(name, help, metrics.KindGauge)
	t.Sample(float64(value[0]), "static", "")
	t.Sample(float64(value[1]), "static", "true")
}

// counted has the numbers of objects: for pods those of the API server first, then static ones; for volumes those
// that are mounted first, then those that should be mounted.
type counted struct {
	active, desired [2]int
	mirrors         int
	working         map[workingPod]int
	running         int
	containers      map[runtimeapi.ContainerState]int
	volumes         map[string][2]int
	// resizing has the pods whose resize is in progress, resizes those that wait, by reason and priority.
	resizing int
	resizes  map[[2]string]int
	// waiting has the containers that wait, by reason.
	waiting map[string]int
}

// containerStates are the kubelet's names of the states of containers.
var containerStates = map[runtimeapi.ContainerState]string{
	runtimeapi.ContainerState_CONTAINER_CREATED: "created",
	runtimeapi.ContainerState_CONTAINER_RUNNING: "running",
	runtimeapi.ContainerState_CONTAINER_EXITED:  "exited",
	runtimeapi.ContainerState_CONTAINER_UNKNOWN: "unknown",
}

func (c *counted) write(t *metrics.Text) {
	gaugeByStatic(t, "kubelet_active_pods", "[ALPHA] The number of pods the kubelet considers active and which are "+
		"being considered when admitting new pods.", c.active)
	gaugeByStatic(t, "kubelet_desired_pods", "[ALPHA] The number of pods the kubelet is being instructed to run.",
		c.desired)
	t.Gauge("kubelet_mirror_pods", "[ALPHA] The number of mirror pods the kubelet will try to create "+
		"(one per admitted static pod)", float64(c.mirrors))
	c.writeWorking(t)
	c.writeResizes(t)
	c.writeWaits(t)
	t.Gauge("kubelet_running_pods", "[ALPHA] Number of pods that have a running pod sandbox", float64(c.running))
	t.Family("kubelet_running_containers", "[ALPHA] Number of containers currently running", metrics.KindGauge)
	for state, name := range containerStates {
		if n := c.containers[state]; n > 0 || state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Sample(float64(n), "container_state", name)
		}
	}
	t.Family("volume_manager_total_volumes", "[ALPHA] Number of volumes in Volume Manager", metrics.KindGauge)
	for plugin, of := range c.volumes {
		t.Sample(float64(of[0]), "plugin_name", plugin, "state", "actual_state_of_world")
		t.Sample(float64(of[1]), "plugin_name", plugin, "state", "desired_state_of_world")
	}
}

func count(all []agent.PodView, volumes Volumes) counted {
	c := counted{
		working:    map[workingPod]int{},
		containers: map[runtimeapi.ContainerState]int{},
		volumes:    map[string][2]int{},
		resizes:    map[[2]string]int{},
		waiting:    map[string]int{},
	}
	for _, s := range all {
		kind := 0
		if podutil.IsStatic(s.Pod) {
			kind = 1
		}
		ended := podutil.IsTerminal(s.Status.Phase)
		c.working[working(s)]++
		orphaned := s.Stop.Is(podstate.StopOrphaned)
		if !orphaned {
			c.desired[kind]++
		}
		if !orphaned && !s.Rejected && !ended {
			c.active[kind]++
		}
		if s.Mirror != nil {
			c.mirrors++
		}
		if s.ReadySandbox() != "" {
			c.running++
		}
		c.addResizes(s)
		c.addWaits(s)
		for _, container := range s.Runtime.Containers {
			c.containers[container.State]++
		}
		for v := range podutil.UsedVolumes(&s.Pod.Spec) {
			path, mounted := s.Mounted[v.Name]
			plugin := volumes.Plugin(s.Pod, v, path)
			of := c.volumes[plugin]
			if !ended && !s.Rejected {
				of[1]++
			}
			if mounted {
				of[0]++
			}
			c.volumes[plugin] = of
		}
	}
	return c
}
