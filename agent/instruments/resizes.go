package instruments

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/metrics"
)

// addResizes counts the in-place resizes of a pod by its conditions (KEP-1287).
func (c *counted) addResizes(s agent.PodView) {
	for _, condition := range s.Status.Conditions {
		switch condition.Type {
		case corev1.PodResizeInProgress:
			c.resizing++
		case corev1.PodResizePending:
			c.resizes[[2]string{strings.ToLower(condition.Reason), priorityBucket(s.Pod)}]++
		}
	}
}

func (c *counted) writeResizes(t *metrics.Text) {
	t.Gauge("kubelet_pod_in_progress_resizes", "[ALPHA] Number of in-progress resizes for pods.", float64(c.resizing))
	t.Family("kubelet_pod_pending_resizes", "[ALPHA] Number of pending resizes for pods. Label 'priority_bucket' "+
		"classifies the pod priority (system-critical: >=2000000000, high: 100000..1999999999, medium: 1..99999, normal: "+
		"0/default, low: -999..-1, very-low: <=-1000, unknown: nil pod). Label 'reason' describes the state (deferred, "+
		"infeasible).", metrics.KindGauge)
	keys := slices.SortedFunc(maps.Keys(c.resizes), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	for _, k := range keys {
		t.Sample(float64(c.resizes[k]), "priority_bucket", k[1], "reason", k[0])
	}
}

// priorityBucket returns the kubelet's class of a pod's priority.
func priorityBucket(pod *corev1.Pod) string {
	switch priority := podutil.Priority(pod); {
	case priority >= podutil.SystemCritical:
		return "system-critical"
	case priority >= 100_000:
		return "high"
	case priority > 0:
		return "medium"
	case priority == 0:
		return "normal"
	case priority > -1000:
		return "low"
	}
	return "very-low"
}
