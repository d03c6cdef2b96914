package pod

import (
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// ExclusiveCPUs returns how many CPUs a container gets for itself under the static CPU manager policy: its request if
// the pod is Guaranteed and the request is a whole number, else 0. podResources: the feature gate
// PodLevelResourceManagers is on. Without it, containers of a pod with resources of its own get none.
func ExclusiveCPUs(pod *corev1.Pod, c *corev1.Container, podResources bool) int {
	if QOS(pod) != corev1.PodQOSGuaranteed {
		return 0
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) && (!podResources || !IsGuaranteed(c)) {
		return 0
	}
	return WholeCPUs(c.Resources.Requests)
}

// WholeCPUs returns the requested CPUs; 0 if they are not a whole number.
func WholeCPUs(requests corev1.ResourceList) int {
	milli := Amount(requests, corev1.ResourceCPU)
	if milli%1000 != 0 {
		return 0
	}
	return int(milli / 1000)
}
