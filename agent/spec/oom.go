package spec

import (
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

const (
	oomGuaranteed = -997
	oomBestEffort = 1000
	// criticalPriority is the priority from which on a pod counts as critical for the system.
	criticalPriority = 2_000_000_000
)

// OOMScoreAdj is the oom_score_adj of the container's processes. Guaranteed and node-critical pods go last, best-effort
// pods first. In between, the share of the machine's memory (capacity, in bytes) a container requests protects it: it is
// at risk once it uses more than that.
func OOMScoreAdj(pod *corev1.Pod, c *corev1.Container, capacity int64) int64 {
	if isCritical(pod) && pod.Spec.PriorityClassName == "system-node-critical" {
		return oomGuaranteed
	}
	switch QOSClass(pod) {
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
	if kind, found := FindContainer(pod, c.Name); found != nil && kind == Sidecar {
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
	count := int64(len(pod.Spec.Containers) + len(pod.Spec.InitContainers))
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

// isCritical tells whether the system depends on the pod: it is static, a mirror of a static pod, or of system priority.
func isCritical(pod *corev1.Pod) bool {
	if source := pod.Annotations["kubernetes.io/config.source"]; source != "" && source != "api" {
		return true
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	return pod.Spec.Priority != nil && *pod.Spec.Priority >= criticalPriority
}
