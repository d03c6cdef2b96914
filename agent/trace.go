package agent

import (
	"context"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/internal/trace"
)

// stepsSpan covers the steps in flight, from the first that began until none runs.
type stepsSpan struct {
	span     *trace.Span // nil: it is not sampled
	spanName string
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
