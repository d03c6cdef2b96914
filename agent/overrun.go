package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/eviction"
)

// watchLimits ends, until ctx ends, each pod that takes more of the node's disk than it may. It has a goroutine of its own, so
// that a runtime that does not answer keeps nobody from seeing that memory runs short.
func (e *Evictor) watchLimits(ctx context.Context) {
	every := time.NewTicker(levelsEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			e.overruns(ctx)
		}
	}
}

// overruns measures the pods that have a limit, and nothing where there is none. It waits for no pod's end: what becomes of one
// does not change what another has written.
func (e *Evictor) overruns(ctx context.Context) {
	var limited []*corev1.Pod
	for _, pod := range e.pods.Staying(ctx) {
		if eviction.LimitsStorage(pod) && !finished(pod) {
			limited = append(limited, pod)
		}
	}
	if len(limited) == 0 {
		return
	}
	use, err := e.Storage(ctx, limited)
	if err != nil {
		e.Log.Warn("cannot tell whether pods keep their limits of ephemeral storage", "err", err)
		return
	}
	for i, pod := range limited {
		if over := eviction.Exceeded(pod, use[i]); over != nil {
			e.end(ctx, pod, over.Signal, Eviction{Reason: eviction.Reason, Message: over.Message, Grace: hardGrace, Own: true})
		}
	}
}
