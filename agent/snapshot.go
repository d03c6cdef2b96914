package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// PodFacts are the facts of one pod, for metrics and statistics. It is read only: workers and readers share it.
type PodFacts struct {
	// Pod is the pod as its source has it, Status the status that the agent has computed.
	Pod    *corev1.Pod
	Status *corev1.PodStatus
	// Stop is how the pod is being stopped; nil if it is not. Rejected: it was refused at admission.
	Stop     *podstate.Stop
	Rejected bool
	// Sandbox: it has a ready sandbox.
	Sandbox bool
	// Containers counts its instances in the runtime by state.
	Containers map[podstate.ContainerState]int
	// Mounted are the paths of the mounted volumes, by name.
	Mounted map[string]string
}

// Snapshot returns the facts of each pod that has been synced, in no order.
func (s *Supervisor) Snapshot(ctx context.Context) ([]*PodFacts, error) {
	var all []*PodFacts
	if err := s.loop.ask(ctx, func() { all = s.snapshot() }); err != nil {
		return nil, err
	}
	return all, nil
}

// Unfinished returns the pods on the node that were not refused and have not ended.
func (s *Supervisor) Unfinished(ctx context.Context) (all []*corev1.Pod, err error) {
	facts, err := s.Snapshot(ctx)
	for _, f := range facts {
		if !f.Rejected && !podutil.IsTerminal(f.Status.Phase) {
			all = append(all, f.Pod)
		}
	}
	return all, err
}

// snapshot is Snapshot in the supervisor's loop.
func (s *Supervisor) snapshot() []*PodFacts {
	all := make([]*PodFacts, 0, len(s.table.workers))
	for _, e := range s.table.workers {
		now := e.worker.result.Load()
		if now.snapshot == nil {
			continue
		}
		c := &PodFacts{Pod: e.pod(), Status: now.status, Stop: e.stop, Rejected: e.rejected != nil,
			Containers: map[podstate.ContainerState]int{}, Mounted: now.mounted}
		for _, sandbox := range now.snapshot.Sandboxes {
			c.Sandbox = c.Sandbox || sandbox.State == runtimeapi.PodSandboxState_SANDBOX_READY
		}
		for _, container := range now.snapshot.Containers {
			c.Containers[stateFact(container.State)]++
		}
		all = append(all, c)
	}
	return all
}
