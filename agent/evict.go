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
	}
}

// Evict ends a pod. released is closed when the pod has released all its resources: at once for a pod that has no
// worker, or if ctx ends before the supervisor has taken the eviction. An agent that restarts goes on with the
// eviction.
func (s *Supervisor) Evict(ctx context.Context, pod types.UID, e Eviction) (released <-chan struct{}) {
	released, _ = get(ctx, s.loop, func() <-chan struct{} {
		if entry := s.table.workers[pod]; entry != nil && entry.rejected == nil {
			return s.workers.evict(entry, e)
		}
		return nil
	})
	if released == nil {
		return closed
	}
	return released
}

// RejectVolumes ends a pod that cannot have its volumes because the node has as many as a driver allows, so that its
// controller replaces it on another node.
func (s *Supervisor) RejectVolumes(ctx context.Context, pod *corev1.Pod, message string) {
	const reason = "VolumeAttachmentLimitExceeded"
	s.cfg.Metrics.Rejected(reason)
	s.cfg.Events.PodEvent(pod, "", corev1.EventTypeWarning, reason, message)
	s.Evict(ctx, pod.UID, Eviction{Reason: reason, Message: "Pod was rejected: " + message, Own: true})
}

// closed is a closed channel.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Active returns the pods that use resources of the node or soon will.
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
			if e.rejected == nil && !e.worker.isReleased() && wanted(e.stop) {
				all = append(all, e.pod())
			}
		}
		return all
	})
	return pods
}

// Alive returns an error if the supervisor's loop does not answer before ctx ends. Before the loop has begun it
// returns nil.
func (s *Supervisor) Alive(ctx context.Context) error { return s.loop.answers(ctx) }

// healthLimit bounds how long Health waits.
const healthLimit = 5 * time.Second

// Health is Alive for a caller without a context, such as the check syncloop of /healthz.
func (s *Supervisor) Health() error {
	ctx, cancel := context.WithTimeout(context.Background(), healthLimit)
	defer cancel()
	return s.Alive(ctx)
}

// AwaitPods waits until the pods of the node are known: every source has synced, the runtime has listed its pods, and
// the supervisor has decided about the admission of each that is on the node. Before that Active, Staying and Snapshot
// lack pods that run. It reports whether they are known; they are not if ctx ends or the supervisor returns before.
func (s *Supervisor) AwaitPods(ctx context.Context) bool {
	select {
	case <-s.known:
		return true
	case <-s.loop.gone:
	case <-ctx.Done():
	}
	return false
}
