package agent

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
)

// Counted is what is known of one pod, for those who count and measure. Read only: workers and readers share it.
type Counted struct {
	// Pod is the pod as its source has it, Status what the agent says of it.
	Pod    *corev1.Pod
	Status *corev1.PodStatus
	// Stop is the way in which it is being ended, nil if it is not; Rejected, that it was never let in.
	Stop     *podstate.Stop
	Rejected bool
	// Sandbox: it has a sandbox that is ready.
	Sandbox bool
	// Containers are its instances in the runtime by their states.
	Containers map[podstate.ContainerState]int
	// Mounted is where the volumes that are set up lie, by their names.
	Mounted map[string]string
}

// Census gives what is known of each pod that has a worker and has had a turn, in no order.
func (s *Supervisor) Census(ctx context.Context) ([]*Counted, error) {
	var all []*Counted
	if !s.do(ctx, func() { all = s.census() }) {
		return nil, cmp.Or(ctx.Err(), errEnding)
	}
	return all, nil
}

// census runs in the supervisor's loop.
func (s *Supervisor) census() []*Counted {
	all := make([]*Counted, 0, len(s.workers))
	for _, e := range s.workers {
		now := e.worker.shown.Load()
		if now.known == nil {
			continue
		}
		c := &Counted{Pod: e.pod(), Status: &now.status, Stop: e.stop, Rejected: e.rejected != nil,
			Containers: map[podstate.ContainerState]int{}, Mounted: now.mounted}
		for _, sandbox := range now.known.Sandboxes {
			c.Sandbox = c.Sandbox || sandbox.State == runtimeapi.PodSandboxState_SANDBOX_READY
		}
		for _, container := range now.known.Containers {
			c.Containers[stateFact(container.State)]++
		}
		all = append(all, c)
	}
	return all
}

// mounted is where the volumes that are set up lie. It is made anew when there is another one.
func (w *worker) mounted() map[string]string {
	before := w.shown.Load().mounted
	same := len(before) == len(w.mounts)
	for name, m := range w.mounts {
		same = same && before[name] == m.HostPath
	}
	if same {
		return before
	}
	all := make(map[string]string, len(w.mounts))
	for name, m := range w.mounts {
		all[name] = m.HostPath
	}
	return all
}
