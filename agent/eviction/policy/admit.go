package policy

import (
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Reason is the status reason of pods that are evicted or refused because the node runs short.
const Reason = "Evicted"

// Rejection returns why a new pod is refused while the node runs short; empty if it is not. If only memory is short,
// only BestEffort pods that do not tolerate that are refused.
func Rejection(pod *corev1.Pod, p Pressure) string {
	short := p.Holding()
	if len(short) == 0 || podutil.IsCritical(pod) {
		return ""
	}
	onlyMemory := len(short) == 1 && short[0] == corev1.NodeMemoryPressure
	if onlyMemory && (podutil.QOS(pod) != corev1.PodQOSBestEffort || toleratesMemoryPressure(pod)) {
		return ""
	}
	return fmt.Sprintf("The node had condition: %v. ", short)
}

func toleratesMemoryPressure(pod *corev1.Pod) bool {
	taint := &corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
	return corev1helpers.TolerationsTolerateTaint(logr.Discard(), pod.Spec.Tolerations, taint, true)
}
