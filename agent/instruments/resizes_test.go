package instruments

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/metrics"
)

// TestWaits checks the classes of pods whose resize waits, those in progress, and the containers that wait.
func TestWaits(t *testing.T) {
	var all []agent.PodView
	for _, c := range []struct {
		priority int32
		kind     corev1.PodConditionType
		reason   string
	}{
		{2_000_000_000, corev1.PodResizePending, corev1.PodReasonDeferred},
		{100_000, corev1.PodResizePending, corev1.PodReasonDeferred},
		{1, corev1.PodResizePending, corev1.PodReasonInfeasible},
		{0, corev1.PodResizePending, corev1.PodReasonInfeasible},
		{-999, corev1.PodResizePending, corev1.PodReasonInfeasible},
		{-1000, corev1.PodResizePending, corev1.PodReasonInfeasible},
		{0, corev1.PodResizeInProgress, ""},
	} {
		status := corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: c.kind, Reason: c.reason}}}
		status.ContainerStatuses = make([]corev1.ContainerStatus, 2)
		status.ContainerStatuses[1].State.Waiting = &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}
		all = append(all, agent.PodView{
			Pod:     &corev1.Pod{Spec: corev1.PodSpec{Priority: &c.priority}},
			Status:  status,
			Runtime: &cri.Snapshot{},
		})
	}
	counts, text := count(all, bare{}), &metrics.Text{}
	counts.write(text)
	for _, want := range []string{
		"kubelet_pod_in_progress_resizes 1",
		`nodelet_waiting_containers{reason="ImagePullBackOff"} 7`,
		`kubelet_pod_pending_resizes{priority_bucket="system-critical",reason="deferred"} 1`,
		`kubelet_pod_pending_resizes{priority_bucket="high",reason="deferred"} 1`,
		`kubelet_pod_pending_resizes{priority_bucket="medium",reason="infeasible"} 1`,
		`kubelet_pod_pending_resizes{priority_bucket="normal",reason="infeasible"} 1`,
		`kubelet_pod_pending_resizes{priority_bucket="low",reason="infeasible"} 1`,
		`kubelet_pod_pending_resizes{priority_bucket="very-low",reason="infeasible"} 1`,
	} {
		if !strings.Contains(string(text.Bytes()), want+"\n") {
			t.Errorf("got no %s in\n%s", want, text.Bytes())
		}
	}
}
