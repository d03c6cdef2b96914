package instruments

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/metrics"
	"github.com/nodelet/nodelet/metrics/exporter"
)

// AddProtection adds the memory that the kernel leaves to the pods of each class (KEP-2570): what they request, if it
// is protected, otherwise nothing.
func AddProtection(e *exporter.Exporter, pods Pods, protected bool) {
	e.AddFamilies(func(ctx context.Context, t *metrics.Text) {
		requested := map[corev1.PodQOSClass]int64{}
		if protected {
			all, err := pods.SyncedPods(ctx)
			if err != nil {
				return
			}
			for _, s := range all {
				if !s.Rejected && !podutil.IsTerminal(s.Status.Phase) {
					requests := resourcehelper.PodRequests(s.Pod, resourcehelper.PodResourcesOptions{})
					class := podutil.QOS(s.Pod)
					requested[class] = podutil.Sum(requested[class], podutil.Amount(requests, corev1.ResourceMemory))
				}
			}
		}
		t.Gauge("kubelet_memory_qos_node_memory_min_bytes", "[ALPHA] Total cgroup v2 memory.min in bytes for Guaranteed "+
			"pods. This memory is hard-reserved and never reclaimed by the kernel.",
			float64(requested[corev1.PodQOSGuaranteed]))
		t.Gauge("kubelet_memory_qos_node_memory_low_bytes", "[ALPHA] Total cgroup v2 memory.low in bytes for Burstable "+
			"pods. This memory is soft-reserved and may be reclaimed under extreme pressure.",
			float64(requested[corev1.PodQOSBurstable]))
	})
}
