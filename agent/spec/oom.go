package spec

import (
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

const (
	oomGuaranteed = -997
	oomBestEffort = 1000
)

// OOMScoreAdj is the oom_score_adj of the container's processes. Guaranteed and node-critical pods go last, best-effort
// pods first. In between, the share of the machine's memory (capacity, in bytes) a container requests protects it: it is
// at risk once it uses more than that.
func OOMScoreAdj(pod *corev1.Pod, c *corev1.Container, capacity int64) int64 {
	if podutil.IsCritical(pod) && pod.Spec.PriorityClassName == "system-node-critical" {
		return oomGuaranteed
	}
	switch podutil.QOS(pod) {
	case corev1.PodQOSGuaranteed:
		return oomGuaranteed
	case corev1.PodQOSBestEffort:
		return oomBestEffort
	}
	if capacity <= 0 {
		return oomBestEffort - 1
	}
	share := unclaimedMemory(pod)
	score := 1000 - 1000*(c.Resources.Requests.Memory().Value()+share)/capacity
	if role, found := podutil.Container(&pod.Spec, c.Name); found != nil && role == podutil.RoleSidecar {
		// A sidecar must not go before the containers it serves.
		score = min(score, 1000-1000*(leastMemory(pod)+share)/capacity)
	}
	// Stay above the guaranteed pods and below the best-effort ones. The upper bound catches only 1000 itself: a request
	// beyond the machine is below, and no request is negative.
	score = max(score, 1000+oomGuaranteed)
	if score == oomBestEffort {
		score--
	}
	return score
}

// unclaimedMemory is each container's part of the memory the pod requests as a whole but no container for itself.
func unclaimedMemory(pod *corev1.Pod) int64 {
	count := int64(0)
	for role := range podutil.Containers(&pod.Spec) {
		if role != podutil.RoleEphemeral {
			count++
		}
	}
	if !resourcehelper.IsPodLevelRequestsSet(pod) || pod.Spec.Resources.Requests.Memory().IsZero() || count == 0 {
		return 0
	}
	claimed := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	return (pod.Spec.Resources.Requests.Memory().Value() - claimed.Memory().Value()) / count
}

// leastMemory is the smallest memory request of the app containers.
func leastMemory(pod *corev1.Pod) int64 {
	least := int64(-1)
	for i := range pod.Spec.Containers {
		if m := pod.Spec.Containers[i].Resources.Requests.Memory().Value(); least < 0 || m < least {
			least = m
		}
	}
	return max(least, 0)
}
