package agent

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/internal/loglevel"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Metrics counts what the supervisor and the workers do. It is called from many goroutines and must not block.
type Metrics interface {
	// Created counts a pod that was created during this run of the agent and is synced for the first time. waited is how
	// long after the agent saw it.
	Created(pod *corev1.Pod, waited time.Duration)
	// Synced counts one sync of a worker, in the words of the kubelet: "terminated" for a pod that has released all its
	// resources, "kill" if it was ordered to end, "create" for the first, otherwise "sync".
	Synced(kind string, took time.Duration)
	// Running counts a pod that was created during this run of the agent and runs for the first time. seen is when the
	// agent first saw it, delayed how long images were pulled or init containers ran.
	Running(pod *corev1.Pod, seen time.Time, delayed time.Duration)
	// Ended counts a container whose end was observed.
	Ended(pod *corev1.Pod, container string, end *corev1.ContainerStateTerminated)
	// Relisted counts a list of the pods of the runtime, or a failed one.
	Relisted(began time.Time, took time.Duration, err error)
	// Rejected counts a pod that was refused at admission.
	Rejected(reason string)
	// Preempted counts a pod that ends to free a resource for a critical one.
	Preempted(resource string)
	// Released is called when a pod has given back all that it held, so that nothing of it is measured any more.
	Released(pod *corev1.Pod)
}

// startup is what a worker remembers to measure how long the start of its pod took.
type startup struct {
	seen time.Time
	// fresh: the pod was created during this run of the agent and has not run yet. synced: it was synced before.
	fresh, synced bool
	// over: the pod had ended before this run of the agent saw it.
	over bool
	// delayed is how long images were pulled or init containers ran. since is when the present delay began; zero for none.
	delayed time.Duration
	since   time.Time
}

// measure adds up the delays, whether they are side by side or one after the other.
func (s *startup) measure(delayed bool, now time.Time) {
	switch {
	case delayed && s.since.IsZero():
		s.since = now
	case !delayed && !s.since.IsZero():
		s.delayed += now.Sub(s.since)
		s.since = time.Time{}
	}
}

// startDelayed reports whether an image of the pod is being pulled or an init container runs.
func (w *worker) startDelayed() bool {
	if m := w.memory.Recall(); m.Runs(podstate.KindEnsureImage) || m.Runs(podstate.KindEnsureVolumeImage) {
		return true
	}
	return slices.ContainsFunc(w.facts.containers, func(c podstate.Container) bool {
		role, spec := podutil.Container(&w.order.Pod.Spec, c.Name)
		return c.State == podstate.ContainerRunning && role == podutil.RoleInit && spec != nil
	})
}

// countSync counts a sync that began at a time.
func (w *worker) countSync(began time.Time) {
	kind := "sync"
	switch {
	case w.isReleased():
		kind = "terminated"
	case w.order.Stop != nil:
		kind = "kill"
	case !w.startup.synced:
		kind = "create"
		if w.startup.fresh {
			w.cfg.Metrics.Created(w.order.Pod, began.Sub(w.startup.seen))
		}
	}
	w.startup.synced = true
	w.startup.measure(w.startDelayed(), time.Now())
	w.cfg.Metrics.Synced(kind, time.Since(began))
}

// countEnds counts the containers that have ended since the status before. As with the kubelet, the ends by which the
// agent restarts a container do not count.
func (w *worker) countEnds(before, now *corev1.PodStatus) {
	for c := range podutil.ContainerStatuses(now) {
		end, restarted := c.State.Terminated, false
		if end == nil && c.State.Waiting != nil && c.State.Waiting.Reason == podutil.ReasonCrashLoopBackOff {
			end = c.LastTerminationState.Terminated
			restarted = end != nil && w.stoppedInstance(end.ContainerID)
		}
		if end != nil && !restarted && !shows(podutil.ContainerStatus(before, c.Name), end) {
			w.cfg.Metrics.Ended(w.order.Pod, c.Name, end)
		}
	}
}

// stoppedInstance reports whether the agent has stopped an instance that has ended.
func (w *worker) stoppedInstance(containerID string) bool {
	return w.memory.Recall().Instance(podutil.RuntimeID(containerID)).Stop.ID != ""
}

// shows reports whether a status has the end of an instance; st may be nil.
func shows(st *corev1.ContainerStatus, end *corev1.ContainerStateTerminated) bool {
	if st == nil {
		return false
	}
	same := func(t *corev1.ContainerStateTerminated) bool { return t != nil && t.ContainerID == end.ContainerID }
	return same(st.State.Terminated) || same(st.LastTerminationState.Terminated)
}

// countStart counts the first time that the pod runs, unless it has failed before.
func (w *worker) countStart(st *corev1.PodStatus) {
	phase := st.Phase
	if !w.startup.fresh || phase == corev1.PodPending {
		return
	}
	w.startup.fresh = false
	if phase == corev1.PodFailed && !hasStarted(st) {
		return
	}
	w.log.Log(context.Background(), loglevel.Pods, "pod started", "podUID", w.order.Pod.UID, "phase", phase,
		"took", time.Since(w.startup.seen), "delayed", w.startup.delayed)
	if phase == corev1.PodRunning || phase == corev1.PodSucceeded {
		w.cfg.Metrics.Running(w.order.Pod, w.startup.seen, w.startup.delayed)
	}
}

// hasStarted reports whether a container of the pod runs or has run.
func hasStarted(st *corev1.PodStatus) bool {
	for c := range podutil.ContainerStatuses(st) {
		end := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated)
		if c.State.Running != nil || end != nil && !podutil.Moment(end.StartedAt).IsZero() {
			return true
		}
	}
	return false
}

// logEnd logs that the pod has ended, if this run of the agent has seen it before that.
func (w *worker) logEnd(phase corev1.PodPhase) {
	if !w.startup.over {
		w.log.Log(context.Background(), loglevel.Pods, "pod ended", "podUID", w.order.Pod.UID, "phase", phase)
	}
}
