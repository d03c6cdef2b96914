package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/internal/trace"
)

// running are the steps that run.
type running struct {
	flights map[podstate.Key]flight
	// span covers them from the first that began until none runs; nil if it is not sampled.
	span     *trace.Span
	spanName string
}

// flight is a step in flight: how to cancel it, and when it began.
type flight struct {
	cancel context.CancelFunc
	began  time.Time
}

// since returns when the step in flight began that a pod waits for; nil if it waits for something else.
func (r *running) since(awaited fmt.Stringer) *time.Time {
	step, is := awaited.(podstate.Step)
	if !is {
		return nil
	}
	if f, runs := r.flights[step.Key()]; runs {
		return &f.began
	}
	return nil
}

// traced returns ctx with the span of the steps that run. It begins one before the first of them, with the kubelet's
// name for what is done for the pod.
func (w *worker) traced(ctx context.Context, steps []podstate.Step) context.Context {
	if len(steps) == 0 {
		return ctx
	}
	if name := w.spanFor(steps); name != w.spanName {
		w.span.End(nil)
		pod := w.order.Pod
		w.span = w.cfg.Tracer.Root(name,
			"k8s.pod.uid", string(pod.UID), "k8s.pod", pod.Namespace+"/"+pod.Name, "k8s.pod.name", pod.Name,
			"k8s.namespace.name", pod.Namespace)
		w.spanName = name
	}
	return w.span.Context(ctx)
}

// spanFor returns the kubelet's name of the span: a pod is synced, it is terminating while something of it may run, and
// terminated when only its files and cgroups are left.
func (w *worker) spanFor(steps []podstate.Step) string {
	if w.order.Stop == nil {
		return "syncPod"
	}
	for _, s := range steps {
		if !podstate.TakesAway(s) {
			return "syncTerminatingPod"
		}
	}
	return "syncTerminatedPod"
}

// endSpan ends the span if no step runs.
func (w *worker) endSpan() {
	if len(w.flights) == 0 {
		w.span.End(nil)
		w.span, w.spanName = nil, ""
	}
}
