package instruments

import (
	"strconv"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/metrics"
)

// workingPod has the labels of kubelet_working_pods.
type workingPod struct{ lifecycle, config, static string }

// working returns the labels of a pod. A pod that nodelet has found in the runtime without a source is an orphan too:
// there is no "runtime_only".
func working(s agent.PodView) workingPod {
	w := workingPod{lifecycle: "sync", config: "desired"}
	switch {
	case s.Rejected || podutil.IsTerminal(s.Status.Phase):
		w.lifecycle = "terminated"
	case s.Stop != nil:
		w.lifecycle = "terminating"
	}
	if s.Stop.Is(podstate.StopOrphaned) {
		w.config = "orphan"
		if s.ReadySandbox() != "" || len(s.Running()) > 0 {
			w.lifecycle = "terminating"
		}
	}
	if podutil.IsStatic(s.Pod) {
		w.static = strconv.FormatBool(true)
	}
	return w
}

// writeWorking writes all combinations of labels that the kubelet has, also those without a pod.
func (c *counted) writeWorking(t *metrics.Text) {
	t.Family("kubelet_working_pods", "[ALPHA] Number of pods the kubelet is actually running, broken down by lifecycle "+
		"phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An "+
		"orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that "+
		"are not otherwise visible.", metrics.KindGauge)
	for _, lifecycle := range []string{"sync", "terminating", "terminated"} {
		for _, w := range []workingPod{
			{lifecycle, "desired", ""}, {lifecycle, "desired", "true"},
			{lifecycle, "orphan", ""}, {lifecycle, "orphan", "true"},
			{lifecycle, "runtime_only", "unknown"},
		} {
			t.Sample(float64(c.working[w]), "config", w.config, "lifecycle", w.lifecycle, "static", w.static)
		}
	}
}
