package placement

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	u := &updates{applied: map[string]string{}, inFlight: map[string]bool{}}
	defer u.calls.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
		case <-time.After(m.cfg.Settings.ReconcilePeriod):
			m.cfg.WithEnded(ctx, m.ReleaseEnded)
		}
		if err := m.save(); err != nil {
			m.cfg.Log.Warn("cannot record who has which CPUs and memory, trying again", "err", err,
				"retryIn", m.cfg.Settings.ReconcilePeriod)
		}
		if m.policy.CPU == nil {
			continue
		}
		if err := m.reconcile(ctx, u); err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("cannot list containers to update their CPUs, trying again", "err", err,
				"retryIn", m.cfg.Settings.ReconcilePeriod)
		}
	}
}

// reconcile gives each running container of a pod the CPUs that it should have.
func (m *Manager) reconcile(ctx context.Context, u *updates) error {
	_, all, err := m.cfg.Runtime.List(ctx)
	if err != nil {
		return err
	}
	running := map[string]bool{}
	var unserved []string
	for _, c := range all {
		pod, name := types.UID(c.Labels[podutil.LabelPodUID]), c.Labels[podutil.LabelContainerName]
		if pod == "" || c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		running[c.Id] = true
		want, made := m.wanted(pod, name)
		if want == "" {
			unserved = append(unserved, c.Labels[podutil.LabelPodNamespace]+"/"+c.Labels[podutil.LabelPodName])
		}
		if !u.begin(c.Id, want, made) {
			continue
		}
		await(&u.calls, func() {
			err := m.cfg.Runtime.UpdateContainerResources(ctx, c.Id, &runtimeapi.LinuxContainerResources{CpusetCpus: want})
			if err != nil {
				m.cfg.Log.Info("cannot update the CPUs of a container, trying again", "podUID", pod, "container", name,
					"cpus", want, "err", err, "retryIn", m.cfg.Settings.ReconcilePeriod)
			}
			u.end(c.Id, want, err)
			if now, _ := m.wanted(pod, name); err == nil && now != want {
				m.changed.Set() // a look at the containers during the call began no other one
			}
		})
	}
	u.keepOnly(running)
	if len(unserved) > 0 && !u.warned {
		slices.Sort(unserved)
		m.cfg.Log.Warn("the shared pool has no CPUs left, pods without exclusive CPUs use reserved ones and those of "+
			"others: request fewer exclusive CPUs on this node", "pods", slices.Compact(unserved))
	}
	u.warned = len(unserved) > 0
	return nil
}

// updates has the CPUs of containers by their IDs, and the calls that change them.
type updates struct {
	calls sync.WaitGroup
	// warned: the last look at the containers has found some of the shared pool, and it was empty.
	warned bool

	mu       sync.Mutex
	applied  map[string]string // what a container has
	inFlight map[string]bool
}

// begin reports whether a container is to get the CPUs want. made are those with which it was created, if known. A
// container has one call at a time.
func (u *updates) begin(id, want, made string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, known := u.applied[id]; !known && made != "" {
		u.applied[id] = made
	}
	if want == "" || u.applied[id] == want || u.inFlight[id] {
		return false
	}
	u.inFlight[id] = true
	return true
}

// end records the end of a call.
func (u *updates) end(id, want string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.inFlight, id)
	if err == nil {
		u.applied[id] = want
	}
}

// keepOnly forgets the containers that do not run.
func (u *updates) keepOnly(running map[string]bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.applied, func(id, _ string) bool { return !running[id] })
}

// patience is how long the next container waits for a call. CRI-O answers that of a container which is being stopped
// only when it has stopped; until the others have their CPUs, they use those of another pod.
const patience = time.Second

// await makes a call, and returns at its end or after patience.
func await(calls *sync.WaitGroup, call func()) {
	ended := make(chan struct{})
	calls.Go(func() { defer close(ended); call() })
	select {
	case <-ended:
	case <-time.After(patience):
	}
}

// wanted returns the CPUs that a container should have, and those with which this run of the agent has created it;
// empty if it has not.
func (m *Manager) wanted(pod types.UID, container string) (want, made string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	set, _ := m.state.CPU.Of(pod, container)
	return set.String(), m.made[pod][container]
}
