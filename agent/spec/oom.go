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

// oomScoreAdj returns the oom_score_adj of the container's processes. The kernel kills best-effort pods first,
// guaranteed and node-critical pods last. Between them, a container is protected in proportion to the share of the
// machine's memory (capacity, in bytes) that it requests: it is at risk once it uses more than its request.
func oomScoreAdj(pod *corev1.Pod, c *corev1.Container, capacity int64) int64 {
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
	unclaimed := unclaimedMemory(pod)
	score := func(request int64) int64 { return 1000 - 1000*min(podutil.Sum(request, unclaimed), capacity)/capacity }
	adjust := score(podutil.Amount(c.Resources.Requests, corev1.ResourceMemory))
	if role, found := podutil.Container(&pod.Spec, c.Name); found != nil && role == podutil.RoleSidecar {
		// The kernel must not kill a sidecar before the containers that it serves.
		adjust = min(adjust, score(leastMemory(pod)))
	}
	// It must be above that of guaranteed pods and below that of best-effort pods.
	return min(max(adjust, 1000+oomGuaranteed), oomBestEffort-1)
}

// unclaimedMemory returns an equal share for each container of the memory that the pod requests in addition to the
// requests of its containers.
func unclaimedMemory(pod *corev1.Pod) int64 {
	count := int64(0)
	for range podutil.ContainersWithResources(&pod.Spec) {
		count++
	}
	if !resourcehelper.IsPodLevelRequestsSet(pod) || pod.Spec.Resources.Requests.Memory().IsZero() || count == 0 {
		return 0
	}
	claimed := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	all := podutil.Amount(pod.Spec.Resources.Requests, corev1.ResourceMemory)
	return max(0, all-podutil.Amount(claimed, corev1.ResourceMemory)) / count
}

// leastMemory returns the smallest memory request of the app containers.
func leastMemory(pod *corev1.Pod) int64 {
	least := int64(-1)
	for i := range pod.Spec.Containers {
		m := podutil.Amount(pod.Spec.Containers[i].Resources.Requests, corev1.ResourceMemory)
		if least < 0 || m < least {
			least = m
		}
	}
	return max(least, 0)
}
