package shutdown

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/internal/backoff"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// endGroups ends all pods, group by group in rising priority: each group gets its time, or less when all its pods have
// released what they held and statuses are sent. begin is called with each group's index before it is ended, and
// reports whether that is still wanted. Groups before first were ended by an earlier run of the agent; what is left of
// them ends with first. No group waits for a pod of another one that has not ended in its time. No group begins after
// ctx has ended: an agent that restarts goes on with the current one.
func (s *Shutdown) endGroups(ctx context.Context, first int, begin func(group int) bool) {
	groups := slices.Clone(s.cfg.Groups)
	s.awaitPods(ctx, groups[min(first, len(groups)):])
	for i := first; i < len(groups) && ctx.Err() == nil && begin(i); i++ {
		var pods []*corev1.Pod
		for _, pod := range s.cfg.Pods.Active(ctx) {
			if max(first, groupOf(groups, pod)) == i {
				pods = append(pods, pod)
			}
		}
		s.endGroup(ctx, groups[i], pods)
	}
}

// awaitPods waits until a restarted agent knows its pods: without them a group would be over at once. The time counts
// for the first group that has any, which must leave half of it to the pods that are known; the whole, if there are
// none.
func (s *Shutdown) awaitPods(ctx context.Context, groups []Group) {
	i := slices.IndexFunc(groups, func(g Group) bool { return g.Grace > 0 })
	if i < 0 {
		return
	}
	began, limit := time.Now(), groups[i].Grace
	known := s.awaitPodsFor(ctx, limit/2) || len(s.cfg.Pods.Active(ctx)) == 0 && s.awaitPodsFor(ctx, limit-limit/2)
	waited := time.Since(began)
	groups[i].Grace = max(0, limit-waited)
	if !known {
		s.cfg.Log.Warn("node shutdown ends only the pods known so far: "+
			"a source of pods has not synced or the container runtime has not listed its pods", "took", waited)
	}
}

func (s *Shutdown) awaitPodsFor(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return s.cfg.Pods.AwaitPods(ctx)
}

func (s *Shutdown) endGroup(ctx context.Context, g Group, pods []*corev1.Pod) {
	if len(pods) == 0 {
		return
	}
	log := s.cfg.Log.With("priority", g.Priority)
	log.Info("node shutdown ends pods", "pods", len(pods), "grace", g.Grace)
	began := time.Now()
	var all []<-chan struct{}
	for _, pod := range pods {
		all = append(all, s.cfg.Pods.Evict(ctx, pod.UID, *eviction(g)))
	}
	ctx, cancel := context.WithTimeout(ctx, g.Grace)
	defer cancel()
	for i, released := range all {
		select {
		case <-released:
		case <-ctx.Done():
			log.Warn("node shutdown no longer waits for the pods of this priority",
				"took", time.Since(began), "pod", podutil.Name(pods[i]))
			return
		}
	}
	log.Info("node shutdown has ended the pods of this priority", "took", time.Since(began))
	s.awaitStatuses(ctx)
}

// awaitStatuses waits until the statuses of the node's pods have reached the API server: what comes next may end the
// way there.
func (s *Shutdown) awaitStatuses(ctx context.Context) {
	for s.cfg.Unsent() && backoff.Sleep(ctx, statusPoll) {
	}
}
