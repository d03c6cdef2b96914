package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// keepShares sets the CPU shares of the burstable class in a goroutine of its own: no pod waits for it.
func (s *Supervisor) keepShares(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case milli := <-s.shares:
			if err := s.cfg.Cgroups.SetBurstableCPU(milli); err != nil {
				s.log.Warn("cannot set the CPU shares of burstable pods, keeping the old ones", "err", err)
			}
		}
	}
}

// share passes to keepShares what the burstable pods request together, in thousandths of a CPU, if it has changed.
// Before the runtime's first list no pod has a worker: the sum would be 0 although pods run.
func (s *Supervisor) share() {
	if s.listed == nil {
		return
	}
	sum := int64(0)
	for _, e := range s.workers {
		if e.active() {
			sum += e.resources.burstable
		}
	}
	if s.shared == nil || *s.shared != sum {
		s.shared = &sum
		s.shares.Put(sum)
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
