package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Eviction ends a pod that its source still has, because the node is short of a resource or shuts down. The API object
// stays, with phase Failed and this reason and message.
type Eviction struct {
	Reason, Message string
	// Grace is the grace period of the containers, or that of the pod if it is shorter.
	Grace time.Duration
	// Own: the pod itself is the cause; see podstate.Stop.
	Own bool
}

func (e *Eviction) stop(pod *corev1.Pod) *podstate.Stop {
	return &podstate.Stop{
		Cause:    podstate.StopEvicted,
		Deadline: time.Now().Add(podstate.EndGrace(min(e.Grace, podutil.GracePeriod(pod)))),
		Reason:   e.Reason,
		Message:  e.Message,
		Own:      e.Own,
		New:      true,
	}
}

// Evict ends a pod. released is closed when the pod has released all its resources: at once for a pod that has no
// worker, or if ctx ends before the supervisor has taken the eviction. An agent that restarts goes on with the
// eviction.
func (s *Supervisor) Evict(ctx context.Context, pod types.UID, e Eviction) (released <-chan struct{}) {
	released, _ = get(ctx, s.loop, func() <-chan struct{} {
		if entry := s.table.workers[pod]; entry != nil && entry.admitted() {
			return s.dispatcher.evict(entry, e)
		}
		return nil
	})
	if released == nil {
		return closed
	}
	return released
}

// CallOff lets the static pods that were evicted for a reason start again when they have ended, because the reason is
// gone: no controller replaces them.
func (s *Supervisor) CallOff(ctx context.Context, reason string) {
	s.loop.do(ctx, func() {
		for _, e := range s.table.workers {
			if podutil.IsStatic(e.source) && e.stop.Is(podstate.StopEvicted) && e.stop.Reason == reason {
				e.retryAt = time.Now()
			}
		}
		s.dispatcher.retry()
	})
}

// RejectVolumes ends a pod that cannot have its volumes because the node has as many as a driver allows, so that its
// controller replaces it on another node.
func (s *Supervisor) RejectVolumes(ctx context.Context, pod *corev1.Pod, message string) {
	const reason = "VolumeAttachmentLimitExceeded"
	s.cfg.refused(pod, reason, message)
	s.Evict(ctx, pod.UID, Eviction{Reason: reason, Message: podutil.MessageRejected + message, Own: true})
}

// closed is a closed channel.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()
