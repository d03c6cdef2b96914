package podstatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// deviceHealth returns the health of the devices of an app container. Health that is not known yet in this run of the
// agent stays as the API shows it, and so does the health of devices that a pod that ends has given back.
func (b *builder) deviceHealth(slot *podstate.Slot) []corev1.ResourceStatus {
	if slot.Role != podutil.RoleApp {
		return nil
	}
	var reported []corev1.ResourceStatus
	if slot.Reported != nil {
		reported = slot.Reported.AllocatedResourcesStatus
	}
	now := b.DeviceHealth[slot.Spec.Name]
	if now == nil {
		if b.Ending == nil && !podutil.IsTerminal(b.Reported.Phase) {
			return nil
		}
		return reported
	}
	all := make([]corev1.ResourceStatus, len(now))
	for i, r := range now {
		all[i] = corev1.ResourceStatus{
			Name:      r.Name,
			Resources: completeHealth(r.Resources, healthOf(reported, r.Name)),
		}
	}
	return all
}

// healthOf returns what is reported of a resource.
func healthOf(reported []corev1.ResourceStatus, name corev1.ResourceName) []corev1.ResourceHealth {
	i := slices.IndexFunc(reported, func(r corev1.ResourceStatus) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return reported[i].Resources
}

// completeHealth returns the health of devices, that in reported for those whose health is not known yet.
func completeHealth(now, reported []corev1.ResourceHealth) []corev1.ResourceHealth {
	before := map[corev1.ResourceID]corev1.ResourceHealth{}
	for _, d := range reported {
		before[d.ResourceID] = d
	}
	all := slices.Clone(now)
	for i, d := range all {
		if d.Health != "" {
			continue
		}
		all[i].Health = corev1.ResourceHealthStatusUnknown
		if old, has := before[d.ResourceID]; has {
			all[i] = old
		}
	}
	return all
}
