package agent

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/cri"
)

// shown is what a worker's last turn made of its pod, for those who ask. It is not changed any more.
type shown struct {
	status corev1.PodStatus
	// known is what the runtime said; nil before the first turn.
	known *cri.Snapshot
	// mounted is where the volumes that are set up lie, by their names.
	mounted map[string]string
	// over is closed when there is a newer one, or will be none any more.
	over chan struct{}
}

// show publishes what a turn made of the pod, and wakes who waits for it.
func (w *worker) show(status *corev1.PodStatus) {
	before := w.shown.Swap(&shown{status: *status, known: w.known, mounted: w.mounted(), over: make(chan struct{})})
	close(before.over)
}
