package instruments

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/metrics"
)

// addWaits counts the containers of a pod that wait, by the reason in their status.
func (c *counted) addWaits(s *agent.PodFacts) {
	for _, list := range [][]corev1.ContainerStatus{
		s.Status.InitContainerStatuses, s.Status.ContainerStatuses, s.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if w := list[i].State.Waiting; w != nil && w.Reason != "" {
				c.waiting[w.Reason]++
			}
		}
	}
}

func (c *counted) writeWaits(t *metrics.Text) {
	t.Family("nodelet_waiting_containers", "Containers that wait, by the reason in their status.", metrics.KindGauge)
	for _, reason := range slices.Sorted(maps.Keys(c.waiting)) {
		t.Sample(float64(c.waiting[reason]), "reason", reason)
	}
}
