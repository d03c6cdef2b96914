package agent

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/cri"
)

// shown is the result of a sync for other goroutines. It is never changed.
type shown struct {
	status corev1.PodStatus
	// known is what the runtime showed; nil before the first sync.
	known *cri.Snapshot
	// mounted are the paths of the mounted volumes, by name.
	mounted map[string]string
	// over is closed when there is a newer result, or when there will be none.
	over chan struct{}
}

// show publishes the result of a sync and wakes those who wait for it.
func (w *worker) show(status *corev1.PodStatus) {
	before := w.shown.Swap(&shown{status: *status, known: w.known, mounted: w.mounted(), over: make(chan struct{})})
	close(before.over)
}
