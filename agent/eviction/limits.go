package eviction

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/eviction/policy"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/internal/periodic"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// watchLimits evicts, until ctx ends, each pod that takes more of the node's disk than its limits allow. It has a
// goroutine of its own, so that a runtime that does not answer does not delay the other evictions.
func (e *Evictor) watchLimits(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(periodic.Until(levelsEvery)):
			e.enforceLimits(ctx)
		}
	}
}

// limitsFree reports whether a pod that was evicted for its own excess may still free disk space. What it has used in
// excess is often what the disk lacks.
func (e *Evictor) limitsFree() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.exceeding = slices.DeleteFunc(e.exceeding, func(l leaving) bool {
		return latest.Closed(l.released) || time.Now().After(l.overdue)
	})
	return len(e.exceeding) > 0
}

// enforceLimits measures the pods that have a limit, and nothing if none has. It does not wait for the end of a pod:
// that changes nothing about the limits of others.
func (e *Evictor) enforceLimits(ctx context.Context) {
	var limited []*corev1.Pod
	for _, pod := range e.cfg.Pods.Staying(ctx, hardGrace) {
		if policy.LimitsStorage(pod) && !podutil.IsTerminal(pod.Status.Phase) {
			limited = append(limited, pod)
		}
	}
	if len(limited) == 0 {
		return
	}
	use := e.cfg.Node.Storage(ctx, limited)
	for i, pod := range limited {
		if over := policy.Exceeded(pod, use[i]); over != nil {
			released := e.evict(ctx, pod, over.Signal, agent.Eviction{
				Reason:  policy.Reason,
				Message: over.Message,
				Grace:   hardGrace,
				Own:     true,
			}, nil)
			e.mu.Lock()
			e.exceeding = append(e.exceeding, leaving{released, time.Now().Add(releaseTimeout)})
			e.mu.Unlock()
		}
	}
}
