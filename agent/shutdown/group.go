package shutdown

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/config"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// What the status of pods and the events of the node say of a shutdown, in the kubelet's words.
const (
	// Reason and Message are in the status of pods that were ended.
	Reason  = "Terminated"
	Message = "Pod was terminated in response to imminent node shutdown."

	refusedReason  = "NodeShutdown"
	refusedMessage = "Pod was rejected as the node is shutting down."
	eventReason    = "Shutdown"
	beginMessage   = "Shutdown manager detected shutdown event"
	cancelMessage  = "Shutdown manager detected shutdown cancellation"
)

// groupOf returns the index of a pod's group; groups are sorted by priority, at least one. Pods below the lowest
// priority belong to the first.
func groupOf(groups []config.PriorityGrace, pod *corev1.Pod) int {
	for i := len(groups) - 1; i > 0; i-- {
		if groups[i].Priority <= podutil.Priority(pod) {
			return i
		}
	}
	return 0
}
