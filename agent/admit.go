package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/admission"
	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// minPreemption is the minimum of the time that a critical pod waits for the pods that end for it, as with the kubelet.
const minPreemption = 10 * time.Second

const notListed = "the container runtime has not listed its pods yet"

// waitsFor returns what a pod without a worker waits for; nil if the supervisor can decide about its admission.
func (s *Supervisor) waitsFor(pod *corev1.Pod) *Wait {
	switch static := podutil.IsStatic(pod); {
	case s.listed == nil && static:
		return &Wait{For: "its name", Why: "an earlier static pod of this name may still run; " + notListed}
	case s.listed == nil:
		return &Wait{For: "its admission", Why: notListed}
	case static && s.nameBusy(pod):
		return &Wait{For: "its name", Why: "an earlier static pod of this name has to end first"}
	case static || s.admittedBefore(pod):
		return nil
	}
	select {
	case <-s.nodeSeen:
		return nil
	default:
		return &Wait{For: "its admission", Why: "the Node object has not been read from the API server yet"}
	}
}

// preempt ends pods so that a critical one can run. From now on the critical pod counts as admitted, and the others
// do not. It gets its first order when they have released all their resources, or at the latest after 1.5 times their
// grace period: a pod that does not end must not prevent a critical one from running.
func (s *Supervisor) preempt(ctx context.Context, e *entry, v admission.Verdict) {
	limit := minPreemption
	var ending []<-chan struct{}
	for _, pod := range v.Preempt {
		victim := s.workers[pod.UID]
		grace := podutil.GracePeriod(pod)
		s.log.Info("preempting pod to admit a critical pod", "pod", pod.Namespace+"/"+pod.Name, "podUID", pod.UID,
			"resource", v.Short, "for", e.source.Namespace+"/"+e.source.Name)
		s.cfg.Events.PodEvent(pod, "", corev1.EventTypeWarning,
			podstate.ReasonPreempting, podstate.MessagePreempted)
		s.cfg.Metrics.Preempted(string(v.Short))
		victim.preempted = true
		ending = append(ending, s.evict(victim, Eviction{
			Reason:  podstate.ReasonPreempting,
			Message: podstate.MessagePreempted,
			Grace:   grace,
		}))
		limit = max(limit, grace*3/2)
	}
	wait := Wait{For: "pods that end for it", Why: "pods of lower priority are ending to free " + string(v.Short)}
	s.finishAdmission(ctx, e, wait, func(ctx context.Context) error {
		awaitAll(ctx, ending, limit)
		return nil
	}, func(error) { s.reserveDevices(ctx, e) })
}

// awaitAll waits until all channels are closed, until ctx ends, or for limit.
func awaitAll(ctx context.Context, all []<-chan struct{}, limit time.Duration) {
	timeout := time.After(limit)
	for _, done := range all {
		select {
		case <-done:
		case <-timeout:
			return
		case <-ctx.Done():
			return
		}
	}
}

// finishAdmission runs f in a new goroutine, and then calls then in the supervisor's loop, unless the pod has to end
// before that. Only this pod waits for it.
func (s *Supervisor) finishAdmission(ctx context.Context, e *entry, awaited Wait,
	f func(context.Context) error, then func(error)) {
	calling, cancel := context.WithCancel(ctx)
	e.asking, e.awaited = cancel, awaited
	s.alive.Go(func() {
		err := f(calling)
		s.post(func() {
			if calling.Err() != nil {
				return // the pod or the agent has to end; err may only be a result of that
			}
			e.stopAsking()
			then(err)
			s.reconcile(ctx)
		})
	})
}

// discardFitting ends the workers of static pods that were refused and can be admitted now. Without a worker, they go
// through admission again. This is needed because no controller replaces a static pod that has failed.
func (s *Supervisor) discardFitting() {
	for uid, e := range s.workers {
		if !e.retry || e.stop != nil || s.set.Pods[uid] == nil {
			continue
		}
		if s.cfg.Admit(e.pod(), s.others(uid)).Rejection == nil {
			s.log.Info("refused static pod fits now, admitting it",
				"pod", e.source.Namespace+"/"+e.source.Name, "podUID", uid)
			e.retry = false
			e.discard()
		}
	}
}
