package agent

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
)

// Metrics counts what the agent does. It is called from many goroutines and must not block.
type Metrics interface {
	// Step has ended; p is nil where it has done what it should.
	Step(pod *corev1.Pod, s podstate.Step, took time.Duration, p *podstate.Problem)
	// Turn of a worker: "create" for its first, "terminate" when the pod is to end, else "sync".
	Turn(kind string, took time.Duration)
	// Pulled an image.
	Pulled(bytes uint64, took time.Duration)
	// Running: a pod that came during this life of the agent runs for the first time. seen is when the agent learnt of it,
	// pulling how long it was kept by pulls of images.
	Running(pod *corev1.Pod, seen time.Time, pulling time.Duration)
	// Ended: a container has been seen to have ended.
	Ended(pod *corev1.Pod, container string, end *corev1.ContainerStateTerminated)
	// Relisted the pods of the runtime.
	Relisted(began time.Time, took time.Duration)
	// Rejected a pod at admission.
	Rejected(reason string)
	// Preempted a pod to free a resource for a critical one.
	Preempted(resource string)
	// Gone: the last trace of a pod has gone.
	Gone(pod *corev1.Pod)
}

// life is what a worker remembers to tell how long its pod's start took.
type life struct {
	seen time.Time
	// fresh: the pod came during this life of the agent and has not run yet.
	fresh, turned bool
	pulling       time.Duration
}

// turned reports a sync that began at a time.
func (w *worker) turned(began time.Time) {
	kind := "sync"
	switch {
	case w.desired.Stop != nil:
		kind = "terminate"
	case !w.life.turned:
		kind = "create"
	}
	w.life.turned = true
	w.hands.Metrics.Turn(kind, time.Since(began))
}

// containersEnded reports the containers that have ended since the last status, or the one that the API
// showed at first.
func (w *worker) containersEnded(now *corev1.PodStatus) {
	before := w.memory.Reported
	if before == nil {
		before = &w.desired.Pod.Status
	}
	for _, lists := range [][2][]corev1.ContainerStatus{
		{before.InitContainerStatuses, now.InitContainerStatuses}, {before.ContainerStatuses, now.ContainerStatuses},
		{before.EphemeralContainerStatuses, now.EphemeralContainerStatuses},
	} {
		for _, c := range lists[1] {
			had := slices.ContainsFunc(lists[0], func(old corev1.ContainerStatus) bool {
				return old.Name == c.Name && old.State.Terminated != nil
			})
			if c.State.Terminated != nil && !had {
				w.hands.Metrics.Ended(w.desired.Pod, c.Name, c.State.Terminated)
			}
		}
	}
}

// ran reports the first time that the pod runs.
func (w *worker) ran(phase corev1.PodPhase) {
	if !w.life.fresh || phase == corev1.PodPending {
		return
	}
	w.life.fresh = false
	if phase == corev1.PodRunning || phase == corev1.PodSucceeded {
		w.hands.Metrics.Running(w.desired.Pod, w.life.seen, w.life.pulling)
	}
}
