package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/logs"
	"github.com/nodelet/nodelet/internal/latest"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// PodView is what the agent knows of one pod at one time. It is read only: workers and readers share it.
type PodView struct {
	// Source is the pod as its source has it. Pod is the same with the resources that are allocated to it.
	Source, Pod *corev1.Pod
	// Mirror is the mirror pod that the API server has of a static pod, or nil.
	Mirror *corev1.Pod
	// Desired is false for a pod that is being removed: no source has it any more.
	Desired bool
	// Stop is how the pod is being stopped; nil if it is not. Rejected: it was refused at admission.
	Stop     *podstate.Stop
	Rejected bool
	// Status is the newest status, or that of Pod before the first sync of the pod.
	Status corev1.PodStatus
	// Runtime is what the runtime has of the pod; nil before the first sync.
	Runtime *cri.Snapshot
	// Mounted are the paths of the mounted volumes, by name.
	Mounted map[string]string

	worker *worker // nil while the pod waits for an earlier one to end
}

// Admitted reports whether the pod has been admitted or refused. If not, an earlier pod of its name may still be
// ending.
func (v PodView) Admitted() bool { return v.worker != nil }

// ReadySandbox returns the ID of the pod's ready sandbox, or "".
func (v PodView) ReadySandbox() string {
	if v.Runtime == nil {
		return ""
	}
	for _, s := range v.Runtime.Sandboxes { // the newest first
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			return s.Id
		}
	}
	return ""
}

// Running returns the running containers of the pod, the highest attempt first.
func (v PodView) Running() (all []cri.Container) {
	if v.Runtime == nil {
		return nil
	}
	for _, c := range v.Runtime.Containers {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			all = append(all, c)
		}
	}
	return all
}

// RunningLogs returns the logs of all running containers. It is called every few seconds, so it makes no list of views.
// It asks the runtime about pods without a worker: an agent that starts without the API server does not know them.
func (s *Supervisor) RunningLogs(ctx context.Context) ([]logs.Log, error) {
	type pods struct {
		synced  []*cri.Snapshot
		unknown []cri.PodSummary
	}
	all, err := ask(ctx, s.loop, func() (all pods) {
		for _, e := range s.table.workers {
			if snapshot := e.worker.result.Load().snapshot; snapshot != nil {
				all.synced = append(all.synced, snapshot)
			}
		}
		for uid, pod := range s.table.listed {
			if pod.Ready && s.table.workers[uid] == nil {
				all.unknown = append(all.unknown, pod)
			}
		}
		return all
	})
	for _, pod := range all.unknown {
		snapshot, err := s.cfg.Runtime.Update(ctx, &cri.Snapshot{UID: pod.UID}, pod.Instances)
		if err != nil {
			s.cfg.Log.Warn("cannot read which containers of a pod without a source run, their logs are not rotated now",
				"pod", pod.Namespace+"/"+pod.Name, "podUID", pod.UID, "err", err)
			continue
		}
		all.synced = append(all.synced, snapshot)
	}
	return runningLogs(all.synced), err
}

func runningLogs(snapshots []*cri.Snapshot) (all []logs.Log) {
	for _, snapshot := range snapshots {
		for _, c := range snapshot.Containers {
			if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING && c.LogPath != "" {
				all = append(all, logs.Log{ID: c.Id, Path: c.LogPath})
			}
		}
	}
	return all
}

// PodViews returns all pods, ordered by namespace, name and UID.
func (s *Supervisor) PodViews(ctx context.Context) ([]PodView, error) {
	all, err := ask(ctx, s.loop, s.podViews)
	if err != nil {
		return nil, err
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i].Pod, all[j].Pod
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID)) < 0
	})
	return all, nil
}

// SyncedPods returns the pods that have been synced.
func (s *Supervisor) SyncedPods(ctx context.Context) ([]PodView, error) {
	all, err := s.PodViews(ctx)
	return slices.DeleteFunc(all, func(v PodView) bool { return v.Runtime == nil }), err
}

// Unfinished returns the pods on the node that were not refused and have not ended: those that a source has, and those
// that are gone from all sources, unless a source has one of their name. It is an error if the agent has just started
// and does not know them all: who counts their devices must not count them as free.
func (s *Supervisor) Unfinished(ctx context.Context) (known, gone []*corev1.Pod, err error) {
	complete, err := ask(ctx, s.loop, func() bool { return s.table.set.Synced })
	if err != nil {
		return nil, nil, err
	}
	if !complete {
		return nil, nil, errors.New("the agent has just started and does not know all pods of the node yet: try again later")
	}
	views, err := s.PodViews(ctx)
	views = slices.DeleteFunc(views, func(v PodView) bool {
		// A pod that has not been synced yet has no status of its own.
		return v.Rejected || podutil.IsTerminal(cmp.Or(v.Status.Phase, v.Pod.Status.Phase))
	})
	name := func(v PodView) types.NamespacedName {
		return types.NamespacedName{Namespace: v.Pod.Namespace, Name: v.Pod.Name}
	}
	desired := map[types.NamespacedName]bool{}
	for _, v := range views {
		desired[name(v)] = desired[name(v)] || v.Desired
	}
	for _, v := range views {
		switch {
		case v.Desired:
			known = append(known, v.Pod)
		case !desired[name(v)]:
			gone = append(gone, v.Pod)
		}
	}
	return known, gone, err
}

// AwaitPods waits until the pods of the node are known: every source has synced, the runtime has listed its pods, and
// the supervisor has decided about the admission of each that is on the node. Before that Active, Staying and
// SyncedPods lack pods that run. It reports whether they are known; they are not if ctx ends or the supervisor returns
// before.
func (s *Supervisor) AwaitPods(ctx context.Context) bool {
	select {
	case <-s.known:
		return true
	case <-s.loop.gone:
	case <-ctx.Done():
	}
	return false
}

// Active returns the pods that run or soon will. As with the kubelet, a pod that has ended is none of them: its end
// would give nothing back, and the release of what it still holds may take for ever, as of a volume.
func (s *Supervisor) Active(ctx context.Context) []*corev1.Pod {
	return s.active(ctx, func(*podstate.Stop) bool { return true })
}

// Staying returns the active pods that are not ended within a time.
func (s *Supervisor) Staying(ctx context.Context, within time.Duration) []*corev1.Pod {
	soon := time.Now().Add(within)
	return s.active(ctx, func(stop *podstate.Stop) bool { return stop == nil || stop.Deadline.After(soon) })
}

func (s *Supervisor) active(ctx context.Context, wanted func(*podstate.Stop) bool) []*corev1.Pod {
	pods, _ := get(ctx, s.loop, func() (all []*corev1.Pod) {
		for _, e := range s.table.workers {
			if e.admitted() && !e.worker.hasEnded() && !e.worker.isReleased() && wanted(e.stop) {
				all = append(all, e.pod())
			}
		}
		return all
	})
	return pods
}

// podViews runs in the supervisor's loop.
func (s *Supervisor) podViews() []PodView {
	all := make([]PodView, 0, len(s.table.workers))
	for uid, e := range s.table.workers {
		v := PodView{
			Source:   e.source,
			Pod:      e.pod(),
			Mirror:   e.mirror,
			Stop:     e.stop,
			Rejected: e.rejected != nil,
			worker:   e.worker,
		}
		_, v.Desired = s.table.set.Pods[uid]
		v, _ = v.Latest()
		all = append(all, v)
	}
	for _, pod := range s.table.pending() {
		all = append(all, PodView{Source: pod, Pod: pod, Desired: true, Status: pod.Status})
	}
	return all
}

// Latest returns v with the newest status, and a channel that is closed when there is a newer one. The channel is nil
// if there will be none.
func (v PodView) Latest() (PodView, <-chan struct{}) {
	if v.worker == nil {
		return v, nil
	}
	now := v.worker.result.Load()
	v.Status = v.Pod.Status
	v.Runtime, v.Mounted = now.snapshot, now.mounted
	if now.snapshot != nil {
		v.Status = *now.status
	}
	if latest.Closed(v.worker.gone) {
		return v, nil
	}
	return v, now.replaced
}
