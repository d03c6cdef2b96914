package eviction

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/eviction/policy"
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

// enforceLimits measures the pods that have a limit, and nothing if none has. It does not wait for the end of a pod:
// that changes nothing about the others.
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
			e.evict(ctx, pod, over.Signal, agent.Eviction{
				Reason:  policy.Reason,
				Message: over.Message,
				Grace:   hardGrace,
				Own:     true,
			}, nil)
		}
	}
}
