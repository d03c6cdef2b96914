package agent

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Explanation is what a pod is doing, what it waits for, and how its containers ended.
type Explanation struct {
	// Pod is "NAMESPACE/NAME", or "pod with UID UID" if its traces on the node have nothing but that.
	Pod   string          `json:"pod"`
	UID   string          `json:"uid"`
	Phase corev1.PodPhase `json:"phase"`
	// Reason and Message say why the pod has failed or is being stopped, if that is not the end of a container.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Ready repeats the Ready condition.
	Ready bool `json:"ready"`
	// Stopping is why the pod is being stopped: deleted, orphaned, completed, or the reason of the node, such as Evicted.
	// It is empty if the pod need not end, or has ended and only its object is left.
	Stopping string `json:"stopping,omitempty"`
	// Waits are what keeps the pod from its desired state, the most important first.
	Waits []Wait `json:"waits,omitempty"`
	// Ends are the last ends of its containers, without those that have succeeded and do not run again.
	Ends []End `json:"ends,omitempty"`
	// unready are its running containers whose startup or readiness probe has not succeeded.
	unready []unready
}

type unready struct{ container, id, probe string }

// NeedsNothing reports whether the pod is ready and need not end, or has succeeded and holds nothing any more.
func (e *Explanation) NeedsNothing() bool {
	return e.Stopping == "" && (e.Ready || e.Phase == corev1.PodSucceeded && len(e.Waits) == 0)
}

// Wait is one thing that a pod waits for.
type Wait struct {
	For string `json:"for"`
	Why string `json:"why"`
	// Probe reports whether Why is the result of a probe. What follows its first ": " may be confidential: the command of
	// the probe, or what a program of the container has said.
	Probe bool `json:"probe,omitempty"`
	// Since is when the step began, if one is in progress.
	Since *time.Time `json:"since,omitempty"`
	// Next is when it is tried again.
	Next *time.Time `json:"next,omitempty"`
}

// End is how an instance of a container ended.
type End struct {
	Container string `json:"container"`
	// At is zero if that is not known.
	At       time.Time `json:"at,omitzero"`
	ExitCode int32     `json:"exitCode"`
	// Reason is that of the container's status, such as OOMKilled.
	Reason string `json:"reason,omitempty"`
	// Error is the runtime's error if the container could not be started.
	Error string `json:"error,omitempty"`
	// Message is the container's termination message. It may be confidential.
	Message string `json:"message,omitempty"`
	// Stopped is why the agent stopped the container. It is empty if the container ended by itself, or if an earlier
	// run of the agent stopped it.
	Stopped string `json:"stopped,omitempty"`
}

// explain returns what follows from a plan, whose steps begin now.
func (w *worker) explain(p plan.Plan) *Explanation {
	o, now := &w.order, time.Now()
	memory := w.memory.Recall()
	e := explanation(o.Pod)
	e.Phase = p.Status.Phase
	e.Reason, e.Message = p.Status.Reason, p.Status.Message
	e.stops(p.Ending, p.Released)
	e.Ends = ends(p.Status, memory)
	e.Ready = podutil.IsTrue(p.Status, corev1.PodReady)
	for _, s := range p.Steps {
		e.Waits = append(e.Waits, Wait{For: s.String(), Why: memory.Progress(s), Since: &now})
	}
	for _, wait := range p.Waits {
		next := Wait{For: wait.For.String(), Why: wait.Why, Since: w.flights.since(wait.For)}
		if !wait.Until.IsZero() {
			next.Next = &wait.Until
		}
		e.Waits = append(e.Waits, next)
	}
	if o.awaitsRemoval(&p) {
		e.Waits = append(e.Waits, keeps(o.Pod))
	}
	if p.Ending == nil {
		e.explainUnready(o.Pod, p.Status)
		if resize := podutil.Condition(p.Status.Conditions, corev1.PodResizePending); resize != nil {
			e.Waits = append(e.Waits, Wait{For: "resize", Why: resize.Reason + ": " + resize.Message})
		}
	}
	return e
}

// keeps returns what keeps the object of a deleted pod that has ended.
func keeps(pod *corev1.Pod) Wait {
	if len(pod.Finalizers) > 0 {
		return Wait{For: "its finalizers", Why: strings.Join(pod.Finalizers, ", ")}
	}
	return Wait{For: "its removal", Why: "the API server still has the pod"}
}

// explainUnready finds the running containers that are not ready, and adds the readiness gates that are not True.
func (e *Explanation) explainUnready(pod *corev1.Pod, st *corev1.PodStatus) {
	for c := range podutil.ContainerStatuses(st) {
		_, spec := podutil.Container(&pod.Spec, c.Name)
		if spec == nil || c.State.Running == nil || c.Ready {
			continue
		}
		probe := ""
		switch {
		case spec.StartupProbe != nil && c.Started != nil && !*c.Started:
			probe = "startup"
		case spec.ReadinessProbe != nil:
			probe = "readiness"
		default:
			continue
		}
		e.unready = append(e.unready, unready{c.Name, podutil.RuntimeID(c.ContainerID), probe})
	}
	if ready := podutil.Condition(st.Conditions, corev1.PodReady); ready != nil &&
		podutil.IsTrue(st, corev1.ContainersReady) && ready.Status != corev1.ConditionTrue {
		e.Waits = append(e.Waits, Wait{For: "readiness gates", Why: ready.Message})
	}
}

// withProbes returns the explanation with what the probes of containers that are not ready have last said.
func (e *Explanation) withProbes(results map[string]podstate.ProbeResults) *Explanation {
	whole := *e
	whole.Waits = slices.Clone(e.Waits)
	for _, c := range e.unready {
		wait := Wait{For: "container " + c.container, Why: results[c.id].Failing, Probe: true}
		if wait.Why == "" {
			wait.Why, wait.Probe = "its "+c.probe+" probe has not succeeded yet", false
		}
		whole.Waits = append(whole.Waits, wait)
	}
	return &whole
}

// ends returns the last ends of containers.
func ends(st *corev1.PodStatus, memory podstate.Recall) []End {
	var all []End
	for c := range podutil.ContainerStatuses(st) {
		last := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated)
		if last == nil || last == c.State.Terminated && !podutil.InitFailed(last.ExitCode, last.Reason) {
			continue
		}
		end := End{Container: c.Name, At: last.FinishedAt.UTC(), ExitCode: last.ExitCode, Reason: last.Reason}
		if podutil.Moment(last.StartedAt).IsZero() {
			end.Error = last.Message
		} else {
			end.Message = last.Message
		}
		end.Stopped = memory.Instance(podutil.RuntimeID(last.ContainerID)).Stop.Reason
		all = append(all, end)
	}
	return all
}

// explanation names the pod.
func explanation(pod *corev1.Pod) *Explanation {
	return &Explanation{Pod: podutil.Name(pod), UID: string(pod.UID)}
}

// stops adds why the pod must not run any more. If it has released all that it held, an object that stays is not being
// stopped.
func (e *Explanation) stops(stop *podstate.Stop, released bool) {
	switch {
	case stop == nil, stop.Is(podstate.StopEvicted) && released:
		return
	case stop.Is(podstate.StopEvicted):
		e.Stopping = cmp.Or(stop.Reason, e.Reason, "completed")
	default:
		e.Stopping = stop.Cause.String()
	}
	if e.Reason == "" {
		e.Reason, e.Message = stop.Reason, stop.Message
	}
}

// explainObserving publishes that the worker asks the runtime about the pod, which may take long, and the steps in
// progress. err is the error of the last attempt, or nil.
func (w *worker) explainObserving(err error) {
	e := explanation(w.order.Pod)
	e.Phase = cmp.Or(w.order.Pod.Status.Phase, corev1.PodPending)
	if before := w.explained.Load(); before != nil {
		*e = *before
		e.Waits, e.unready = nil, nil
	}
	e.stops(w.order.Stop, w.isReleased())
	now := time.Now()
	observing := Wait{For: "read the state of the pod from the container runtime", Why: "in progress", Since: &now}
	if err != nil { // it may come from the disk, too
		observing = Wait{For: "read the state of the pod", Why: err.Error(), Next: new(now.Add(observeRetry))}
	}
	e.Waits = append(e.Waits, observing)
	memory := w.memory.Recall()
	for _, step := range memory.Running() {
		e.Waits = append(e.Waits, Wait{For: step.String(), Why: memory.Progress(step), Since: w.flights.since(step)})
	}
	w.explained.Store(e)
}

// Explain returns what all pods are doing and what they wait for, ordered by namespace and name.
func (s *Supervisor) Explain(ctx context.Context) ([]*Explanation, error) {
	all, err := ask(ctx, s.loop, s.explanations)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *Explanation) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.UID, b.UID))
	})
	return all, nil
}

// Problems returns what is wrong with the sources of pods, such as manifests that are no valid pods.
func (s *Supervisor) Problems(ctx context.Context) ([]string, error) {
	return ask(ctx, s.loop, func() (all []string) {
		for _, p := range s.table.set.Problems {
			all = append(all, p.String())
		}
		return all
	})
}

// explanations collects what the workers have published, and explains the pods that have not begun.
func (s *Supervisor) explanations() []*Explanation {
	all := make([]*Explanation, 0, len(s.table.workers))
	for _, e := range s.table.workers {
		if x := e.worker.explained.Load(); x != nil && len(x.unready) > 0 {
			all = append(all, x.withProbes(s.cfg.Probes.Results(e.pod().UID)))
		} else if x != nil {
			all = append(all, x)
		} else if e.admitting != nil {
			all = append(all, waiting(e.pod(), e.admitting.wait))
		}
	}
	for _, pod := range s.table.pending() {
		if wait := s.dispatcher.waitsFor(pod); wait != nil {
			all = append(all, waiting(pod, *wait))
		}
	}
	return all
}

// waiting explains a pod that has not begun.
func waiting(pod *corev1.Pod, w Wait) *Explanation {
	x := explanation(pod)
	x.Phase, x.Waits = corev1.PodPending, []Wait{w}
	return x
}
