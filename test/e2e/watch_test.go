//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// recorder watches pods and the node during a test and records what must never happen: a status that goes back, and a
// node that turns not Ready.
type recorder struct {
	mu         sync.Mutex
	last       map[types.UID]*corev1.Pod
	violations []string
	seen       int // updates of pods
	nodes      int // updates of the node
	cancel     context.CancelFunc
	done       sync.WaitGroup
}

// record starts to watch the pods with a label, and the node.
func record(selector string) *recorder {
	ctx, cancel := context.WithCancel(context.Background())
	r := &recorder{last: map[types.UID]*corev1.Pod{}, cancel: cancel}
	r.done.Go(func() { _ = follow(ctx, "pods", labelled(selector), r.pod) })
	r.done.Go(func() { _ = follow(ctx, "nodes", named(node().Name), r.node) })
	return r
}

// end stops watching and fails the test for each violation, and if it has seen no pod or no node. It returns the number
// of updates of pods.
func (r *recorder) end(t *testing.T) int {
	t.Helper()
	r.cancel()
	r.done.Wait()
	for _, v := range r.violations {
		t.Error(v)
	}
	if r.seen == 0 || r.nodes == 0 {
		t.Errorf("the watches have seen %d updates of pods and %d of the node, want some of both", r.seen, r.nodes)
	}
	return r.seen
}

func (r *recorder) violation(format string, args ...any) {
	r.violations = append(r.violations, fmt.Sprintf(format, args...))
}

func (r *recorder) node(e watch.Event) bool {
	n, isNode := e.Object.(*corev1.Node)
	if !isNode {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes++
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			r.violation("the node turned Ready=%s: %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return false
}

func (r *recorder) pod(e watch.Event) bool {
	p, isPod := e.Object.(*corev1.Pod)
	if !isPod {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen++
	old := r.last[p.UID]
	r.last[p.UID] = p
	if old != nil {
		r.stepsBack(old, p)
	}
	return false
}

// rank orders the phases. A pod never goes to a lower phase, nor from one terminal phase to the other.
var rank = map[corev1.PodPhase]int{
	corev1.PodPending:   0,
	corev1.PodRunning:   1,
	corev1.PodSucceeded: 2,
	corev1.PodFailed:    2,
}

func (r *recorder) stepsBack(old, p *corev1.Pod) {
	was, is := &old.Status, &p.Status
	if rank[is.Phase] < rank[was.Phase] || rank[was.Phase] == 2 && is.Phase != was.Phase {
		r.violation("pod %s (%s) went from phase %s to %s", p.Name, p.UID, was.Phase, is.Phase)
	}
	if was.StartTime != nil && !was.StartTime.Equal(is.StartTime) {
		r.violation("pod %s: its start time went from %v to %v", p.Name, was.StartTime, is.StartTime)
	}
	if was.PodIP != "" && is.PodIP == "" {
		r.violation("pod %s has lost its pod IP", p.Name)
	}
	for _, c := range is.ContainerStatuses {
		r.containerStepsBack(p, containerStatus(old, c.Name), c)
	}
	for _, c := range is.InitContainerStatuses {
		r.containerStepsBack(p, containerStatus(old, c.Name), c)
	}
}

func (r *recorder) containerStepsBack(p *corev1.Pod, was, is corev1.ContainerStatus) {
	switch {
	case is.RestartCount < was.RestartCount:
		r.violation("pod %s: the restart count of %s went from %d to %d", p.Name, is.Name, was.RestartCount, is.RestartCount)
	case is.RestartCount == was.RestartCount && was.ContainerID != "" && is.ContainerID != was.ContainerID:
		r.violation("pod %s: container %s is %q and was %q, with the same restart count", p.Name, is.Name, is.ContainerID,
			was.ContainerID)
	case is.RestartCount == was.RestartCount && was.State.Running != nil && is.State.Waiting != nil &&
		!hasEnded(is, was.ContainerID):
		r.violation("pod %s: container %s went from running to waiting (%s), with the same restart count", p.Name, is.Name,
			is.State.Waiting.Reason)
	case is.RestartCount == was.RestartCount && was.State.Terminated != nil && is.State.Running != nil:
		r.violation("pod %s: container %s went from terminated to running, with the same restart count", p.Name, is.Name)
	}
}

// hasEnded reports whether the last state of the container is the end of that instance.
func hasEnded(c corev1.ContainerStatus, id string) bool {
	return c.LastTerminationState.Terminated != nil && c.LastTerminationState.Terminated.ContainerID == id
}

// noRestarts fails the test for each container of a recorded pod that was restarted, unless excused returns true.
// excused may be nil.
func (r *recorder) noRestarts(t *testing.T, excused func(*corev1.Pod, corev1.ContainerStatus) bool) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.last {
		for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			if c.RestartCount > 0 && (excused == nil || !excused(p, c)) {
				t.Errorf("restarts of container %s of pod %s: got %d, want none: %+v",
					c.Name, p.Name, c.RestartCount, c.LastTerminationState.Terminated)
			}
		}
	}
}
