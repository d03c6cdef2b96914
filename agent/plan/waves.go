package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// What is said of pods that end for a critical one. The texts are the kubelet's.
const (
	ReasonPreempting = "Preempting"
	MessagePreempted = "Preempted in order to admit critical pod"
	messageDisrupted = "Pod was preempted by Kubelet to accommodate a critical pod."
)

// What is said of pods when the node goes down; the words are the kubelet's.
const (
	ReasonTerminated     = "Terminated"
	MessageTerminated    = "Pod was terminated in response to imminent node shutdown."
	reasonNodeShutdown   = "NodeShutdown"
	messageNotAdmitted   = "Pod was rejected as the node is shutting down."
	MessageShutdownBegin = "Shutdown manager detected shutdown event"
	MessageShutdownEnd   = "Shutdown manager detected shutdown cancellation"
)

// WaveTime is how long the pods from a priority up to the next entry's get to end when the node goes down (KEP-2712).
type WaveTime struct {
	Priority int32
	Grace    time.Duration
}

// NodeGoesDown refuses a pod while the node shuts down.
func NodeGoesDown() *Rejection { return &Rejection{reasonNodeShutdown, messageNotAdmitted} }

// WaveOf is the index of the wave in which pod ends; times are sorted by priority, at least one. Pods below the lowest
// priority go with the first wave.
func WaveOf(times []WaveTime, pod *corev1.Pod) int {
	var priority int32
	if pod.Spec.Priority != nil {
		priority = *pod.Spec.Priority
	}
	for i := len(times) - 1; i > 0; i-- {
		if times[i].Priority <= priority {
			return i
		}
	}
	return 0
}

// ShutdownGrace is how long a pod's containers get in its wave: its own grace, unless the wave's is shorter.
func ShutdownGrace(t WaveTime, pod *corev1.Pod) time.Duration {
	return min(t.Grace, podutil.GracePeriod(pod))
}
