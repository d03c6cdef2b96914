package agent

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// claimsMoved reports whether the names of the objects behind the pod's resource claims have changed.
func claimsMoved(a, b *corev1.Pod) bool {
	return !equality.Semantic.DeepEqual(a.Status.ResourceClaimStatuses, b.Status.ResourceClaimStatuses) ||
		!equality.Semantic.DeepEqual(a.Status.ExtendedResourceClaimStatus, b.Status.ExtendedResourceClaimStatus)
}

// deviceHealth returns the health of the devices of a pod, by container: nil for a pod without devices, an empty health
// for what is not known yet.
func (c *Config) deviceHealth(pod *corev1.Pod) map[string][]corev1.ResourceStatus {
	if !c.DeviceHealth {
		return nil
	}
	all := c.Devices.Health(pod.UID)
	for container, claimed := range c.Claims.Health(pod) {
		if all == nil {
			all = map[string][]corev1.ResourceStatus{}
		}
		all[container] = append(all[container], claimed...)
	}
	return all
}
