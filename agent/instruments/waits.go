package instruments

import (
	"maps"
	"slices"

	"github.com/nodelet/nodelet/agent"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/metrics"
)

// addWaits counts the containers of a pod that wait, by the reason in their status.
func (c *counted) addWaits(s agent.PodView) {
	for st := range podutil.ContainerStatuses(&s.Status) {
		if w := st.State.Waiting; w != nil && w.Reason != "" {
			c.waiting[w.Reason]++
		}
	}
}

func (c *counted) writeWaits(t *metrics.Text) {
	t.Family("nodelet_waiting_containers", "Containers that wait, by the reason in their status.", metrics.KindGauge)
	for _, reason := range slices.Sorted(maps.Keys(c.waiting)) {
		t.Sample(float64(c.waiting[reason]), "reason", reason)
	}
}
