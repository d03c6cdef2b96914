package shutdown

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// endGroups ends all pods, group by group in rising priority: each group gets its time, or less when all its pods have
// released what they held. onStart is called with each group's index before it is ended. Groups before first were ended
// by an earlier run of the agent; what is left of them ends with first. No group begins after ctx has ended: an agent
// that restarts goes on with the current one.
func (s *Shutdown) endGroups(ctx context.Context, first int, onStart func(group int)) {
	if first < len(s.cfg.Groups) {
		s.awaitPods(ctx, s.cfg.Groups[first].Grace)
	}
	for i := first; i < len(s.cfg.Groups) && ctx.Err() == nil; i++ {
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

// awaitPods waits until a restarted agent knows its pods: without them a group would be over at once. It waits no
// longer than the first group may take.
func (s *Shutdown) awaitPods(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if !s.cfg.Pods.AwaitPods(ctx) {
		s.cfg.Log.Warn("node shutdown ends only the pods known so far: "+
			"a source of pods has not synced or the container runtime has not listed its pods", "waited", limit)
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
