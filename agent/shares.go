package agent

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/nodelet/nodelet/internal/latest"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// shareKeeper sets the CPU shares of the burstable class, in a goroutine of its own: no pod waits for it.
type shareKeeper struct {
	cgroups Cgroups
	log     *slog.Logger
	// next brings what burstable pods request, in thousandths of a CPU; last is what was put there before, -1 for
	// nothing. Only the supervisor's loop uses last.
	next latest.Value[int64]
	last int64
}

func newShareKeeper(cgroups Cgroups, log *slog.Logger) *shareKeeper {
	return &shareKeeper{cgroups: cgroups, log: log, next: latest.NewValue[int64](), last: -1}
}

// set passes on what the burstable pods request together, if it has changed.
func (k *shareKeeper) set(milli int64) {
	if k.last != milli {
		k.last = milli
		k.next.Put(milli)
	}
}

// run sets the shares until ctx ends.
func (k *shareKeeper) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case milli := <-k.next:
			if err := k.cgroups.SetBurstableCPU(milli); err != nil {
				k.log.Warn("cannot set the CPU shares of burstable pods, keeping the old ones", "err", err)
			}
		}
	}
}

// burstableCPU returns what a pod adds to the CPU shares of the burstable class, in thousandths of a CPU; 0 for pods of
// other classes.
func burstableCPU(pod *corev1.Pod) int64 {
	if len(pod.Spec.Containers) == 0 || podutil.QOS(pod) != corev1.PodQOSBurstable {
		return 0
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	return requests.Cpu().MilliValue()
}
