package shutdown

import (
	"sort"
	"time"

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

// Group is the pods of at least a priority, up to that of the next group, with the time that they get to end.
type Group struct {
	Priority int32
	Grace    time.Duration
}

// Groups returns the groups of a configuration, sorted by priority; none without graceful shutdown. The older pair of
// fields makes two, the second for critical pods.
func Groups(c *config.Config) (groups []Group) {
	if !c.Gate("GracefulNodeShutdown") {
		return nil
	}
	k := &c.Kubelet
	if total := k.ShutdownGracePeriod.Duration; total > 0 {
		critical := k.ShutdownGracePeriodCriticalPods.Duration
		groups = []Group{{Grace: total - critical}, {Priority: podutil.SystemCritical, Grace: critical}}
	}
	for _, p := range k.ShutdownGracePeriodByPodPriority {
		groups = append(groups, Group{p.Priority, time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
	}
	sort.Slice(groups, func(i, j int) bool { return groups[i].Priority < groups[j].Priority })
	return groups
}

// groupOf returns the index of a pod's group; groups are sorted by priority, at least one. Pods below the lowest
// priority belong to the first.
func groupOf(groups []Group, pod *corev1.Pod) int {
	for i := len(groups) - 1; i > 0; i-- {
		if groups[i].Priority <= podutil.Priority(pod) {
			return i
		}
	}
	return 0
}
