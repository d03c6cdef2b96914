package shutdown

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// endGroups ends all pods, group by group in rising priority: each group gets its time, or less when all its pods have
// released what they held. onStart is called with each group's index before it is ended. Groups before first were ended
// by an earlier run of the agent; what is left of them ends with first.
func (s *Shutdown) endGroups(ctx context.Context, first int, onStart func(group int)) {
	if first < len(s.cfg.Groups) {
		s.awaitSources(ctx, s.cfg.Groups[first].Grace)
	}
	for i := first; i < len(s.cfg.Groups); i++ {
		onStart(i)
		var pods []*corev1.Pod
		for _, pod := range s.cfg.Pods.Active(ctx) {
			if groupOf(s.cfg.Groups, pod) <= i {
				pods = append(pods, pod)
			}
		}
		s.endGroup(ctx, i, pods)
	}
}

// awaitSources waits until a restarted agent knows its pods: without them a group would be over at once. It waits no
// longer than the first group may take.
func (s *Shutdown) awaitSources(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if !s.cfg.Pods.AwaitSources(ctx) {
		s.cfg.Log.Warn("node shutdown ends the pods that are known: not all sources of pods have synced", "waited", limit)
	}
}

func (s *Shutdown) endGroup(ctx context.Context, group int, pods []*corev1.Pod) {
	if len(pods) == 0 {
		return
	}
	g := s.cfg.Groups[group]
	log := s.cfg.Log.With("priority", g.Priority)
	log.Info("node shutdown ends pods", "pods", len(pods), "grace", g.Grace)
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, g.Grace)
	defer cancel()
	var all []<-chan struct{}
	for _, pod := range pods {
		all = append(all, s.cfg.Pods.Evict(ctx, pod.UID, *s.eviction(group)))
	}
	for i, released := range all {
		select {
		case <-released:
		case <-ctx.Done():
			log.Warn("node shutdown waits no longer for the pods of this priority",
				"took", time.Since(began), "pod", pods[i].Namespace+"/"+pods[i].Name)
			return
		}
	}
	log.Info("node shutdown has ended the pods of this priority", "took", time.Since(began))
}
