package placement

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/placement/numa"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Runtime is what the package needs of the container runtime; *cri.Client is one.
type Runtime interface {
	List(context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error)
	UpdateContainerResources(ctx context.Context, id string, r *runtimeapi.LinuxContainerResources) error
}

// list returns NUMA nodes as a list such as 0,2; empty for no preference.
func list(nodes numa.Mask) string {
	var all []string
	for _, n := range nodes.Nodes() {
		all = append(all, strconv.Itoa(n))
	}
	return strings.Join(all, ",")
}

// Run keeps the files and the CPUs of running containers up to date, until ctx ends. It works when something has
// changed, and each ReconcilePeriod in case that a pod has ended or a call has failed. With all policies off there is
// nothing to do.
func (m *Manager) Run(ctx context.Context) {
	if m.cfg.Settings.off() {
		return
	}
	applied := map[string]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
		case <-time.After(m.cfg.Settings.ReconcilePeriod):
			m.cfg.WithEnded(ctx, func(ended func(types.UID) bool) {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.releaseEnded(ended)
			})
		}
		if err := m.save(); err != nil {
			m.cfg.Log.Warn("cannot record who has which CPUs and memory, trying again", "err", err,
				"retryIn", m.cfg.Settings.ReconcilePeriod)
		}
		if m.policy.CPU == nil {
			continue
		}
		if err := m.reconcile(ctx, applied); err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("cannot list containers to update their CPUs, trying again", "err", err,
				"retryIn", m.cfg.Settings.ReconcilePeriod)
		}
	}
}

// reconcile gives each running container of a pod the CPUs that it should have. applied are those that each container
// has, by its ID; reconcile keeps it up to date.
func (m *Manager) reconcile(ctx context.Context, applied map[string]string) error {
	_, all, err := m.cfg.Runtime.List(ctx)
	if err != nil {
		return err
	}
	running := map[string]bool{}
	for _, c := range all {
		pod, name := types.UID(c.Labels[podutil.LabelPodUID]), c.Labels[podutil.LabelContainerName]
		if pod == "" || c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		running[c.Id] = true
		want, made := m.wanted(pod, name)
		if _, known := applied[c.Id]; !known && made != "" {
			applied[c.Id] = made
		}
		if want == "" || applied[c.Id] == want {
			continue
		}
		err := m.cfg.Runtime.UpdateContainerResources(ctx, c.Id, &runtimeapi.LinuxContainerResources{CpusetCpus: want})
		if err != nil {
			m.cfg.Log.Info("cannot update the CPUs of a container, trying again", "podUID", pod, "container", name, "cpus", want,
				"err", err, "retryIn", m.cfg.Settings.ReconcilePeriod)
			continue
		}
		applied[c.Id] = want
	}
	maps.DeleteFunc(applied, func(id, _ string) bool { return !running[id] })
	return nil
}

// wanted returns the CPUs that a container should have, and those with which this run of the agent has created it;
// empty if it has not.
func (m *Manager) wanted(pod types.UID, container string) (want, made string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	set, _ := m.state.CPU.Of(pod, container)
	return set.String(), m.made[pod][container]
}
