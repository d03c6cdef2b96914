package agent

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/cri"
)

// PodView is what the agent knows of one pod at one time. It is read only: workers and readers share it.
type PodView struct {
	// Pod is the pod as its source has it, with the resources that it was admitted with. Mirror is the mirror pod
	// that the API server has of a static pod, or nil.
	Pod, Mirror *corev1.Pod
	// Desired is false for a pod that is being removed: no source has it any more.
	Desired bool
	// Status is the newest status, or that of Pod before the first sync of the pod.
	Status corev1.PodStatus
	// Runtime is what the runtime has of the pod; nil before the first sync.
	Runtime *cri.Snapshot

	worker *worker // nil while the pod waits for an earlier one to end
}

// Admitted reports whether the pod has been admitted or refused; its predecessor may still be ending otherwise.
func (v PodView) Admitted() bool { return v.worker != nil }

// PodViews returns all pods, ordered by namespace, name and UID.
func (s *Supervisor) PodViews(ctx context.Context) ([]PodView, error) {
	var all []PodView
	if err := s.loop.ask(ctx, func() { all = s.podViews() }); err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b PodView) int {
		return cmp.Or(
			cmp.Compare(a.Pod.Namespace, b.Pod.Namespace),
			cmp.Compare(a.Pod.Name, b.Pod.Name),
			cmp.Compare(a.Pod.UID, b.Pod.UID),
		)
	})
	return all, nil
}

// podViews runs in the supervisor's loop.
func (s *Supervisor) podViews() []PodView {
	all := make([]PodView, 0, len(s.table.workers))
	for uid, e := range s.table.workers {
		_, desired := s.table.set.Pods[uid]
		v, _ := PodView{Pod: e.pod(), Mirror: e.mirror, Desired: desired, worker: e.worker}.Latest()
		all = append(all, v)
	}
	for _, pod := range s.table.pending() {
		all = append(all, PodView{Pod: pod, Desired: true, Status: pod.Status})
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
	v.Status, v.Runtime = v.Pod.Status, now.snapshot
	if now.snapshot != nil {
		v.Status = *now.status
	}
	select {
	case <-v.worker.gone:
		return v, nil
	default:
		return v, now.replaced
	}
}
