package agent

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// syncResult is the result of a sync for other goroutines. It is never changed.
type syncResult struct {
	// status and snapshot, the state of the pod in the runtime, are nil before the first sync.
	status   *corev1.PodStatus
	snapshot *cri.Snapshot
	// mounted are the paths of the mounted volumes, of block volumes those of the devices, by name.
	mounted map[string]string
	// replaced is closed when there is a newer result, or when there will be none.
	replaced chan struct{}
}

// setResult publishes the result of a sync, and wakes the goroutines that wait for it.
func (w *worker) setResult(status *corev1.PodStatus) {
	before := w.result.Swap(&syncResult{
		status:   status,
		snapshot: w.facts.snapshot,
		mounted:  w.left.Paths(w.result.Load().mounted),
		replaced: make(chan struct{}),
	})
	close(before.replaced)
}

// nothingRuns reports whether the pod was observed and none of its containers runs or may run.
func (w *worker) nothingRuns() bool {
	snapshot := w.result.Load().snapshot
	return snapshot != nil && !slices.ContainsFunc(snapshot.Containers, func(c cri.Container) bool {
		return c.State != runtimeapi.ContainerState_CONTAINER_EXITED
	})
}

// hasEnded reports whether the pod was observed to have ended, and none of its containers runs or may run. What it
// holds, such as volumes, may not be released yet.
func (w *worker) hasEnded() bool {
	status := w.result.Load().status
	return status != nil && podutil.IsTerminal(status.Phase) && w.nothingRuns()
}
