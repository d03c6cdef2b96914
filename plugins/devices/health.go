package devices

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Health returns the health of the devices that a pod has (KEP-4680), by container, resources and devices in order. It
// returns nil for a pod without devices. The health is empty as long as it may still become known: the plugin has not
// registered in this process, and its grace period has not ended. It is unknown while the plugin is gone.
func (d *Devices) Health(pod types.UID) map[string][]corev1.ResourceStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	given := d.slotsOf(pod)
	if len(given) == 0 {
		return nil
	}
	all := map[string][]corev1.ResourceStatus{}
	for _, s := range given {
		one := corev1.ResourceStatus{Name: corev1.ResourceName(s.resource)}
		for _, id := range d.given[s].all() {
			one.Resources = append(one.Resources, corev1.ResourceHealth{
				ResourceID: corev1.ResourceID(id),
				Health:     d.resources[s.resource].health(id),
			})
		}
		all[s.container] = append(all[s.container], one)
	}
	return all
}

// health returns the health of a device as Health shows it. r may be nil.
func (r *resource) health(id string) corev1.ResourceHealthStatus {
	switch {
	case r != nil && r.options == nil:
		return ""
	case r == nil || r.plugin == nil:
		return corev1.ResourceHealthStatusUnknown
	case r.plugin.devices == nil:
		return ""
	}
	switch one, has := r.devices[id]; {
	case !has:
		return corev1.ResourceHealthStatusUnknown
	case one.healthy:
		return corev1.ResourceHealthStatusHealthy
	}
	return corev1.ResourceHealthStatusUnhealthy
}

// holders returns the pods that have devices of a resource. mu is held.
func (v *inventory) holders(name string) (pods []types.UID) {
	for s := range v.given {
		if s.resource == name {
			pods = append(pods, s.pod)
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}
