package dra

import (
	"fmt"
	"maps"
	"slices"
	"sort"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/plugins/dra/checkpoint"
)

// Health returns the health of the devices that the containers of a pod have by their ResourceClaims (KEP-4680), by
// container. It returns nil for a pod without ResourceClaims. As with the kubelet, a resource is named claim:ENTRY or
// claim:ENTRY/REQUEST, and a device by its first CDI device, else as driver/pool/device. The health is empty as long as
// it may still become known, and unknown if the driver does not report it.
func (d *DRA) Health(pod *corev1.Pod) map[string][]corev1.ResourceStatus {
	if len(pod.Spec.ResourceClaims) == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[string][]corev1.ResourceStatus{}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		for _, use := range c.Resources.Claims {
			if one := d.healthOf(pod, use); len(one.Resources) > 0 {
				all[c.Name] = append(all[c.Name], one)
			}
		}
		its := all[c.Name]
		sort.Slice(its, func(i, j int) bool { return its[i].Name < its[j].Name })
	}
	return all
}

// healthOf returns the health of what a container uses of one ResourceClaim. mu is held.
func (d *DRA) healthOf(pod *corev1.Pod, use corev1.ResourceClaim) corev1.ResourceStatus {
	one := corev1.ResourceStatus{Name: corev1.ResourceName("claim:" + use.Name)}
	if use.Request != "" {
		one.Name += corev1.ResourceName("/" + use.Request)
	}
	i := slices.IndexFunc(pod.Spec.ResourceClaims, func(e corev1.PodResourceClaim) bool { return e.Name == use.Name })
	if i < 0 {
		return one
	}
	r, err := resolve(pod, &pod.Spec.ResourceClaims[i])
	claim := d.claims[types.NamespacedName{Namespace: pod.Namespace, Name: r.name}]
	if err != nil || claim == nil {
		return one
	}
	seen := map[corev1.ResourceID]bool{}
	for _, driver := range slices.Sorted(maps.Keys(claim.DriverState)) {
		for _, device := range claim.DriverState[driver].Devices {
			health := d.deviceHealth(driver, device)
			if serves(device.RequestNames, use.Request) && !seen[health.ResourceID] {
				seen[health.ResourceID] = true
				one.Resources = append(one.Resources, health)
			}
		}
	}
	return one
}

// deviceHealth returns the health of one device. mu is held.
func (d *DRA) deviceHealth(driver string, device checkpoint.Device) corev1.ResourceHealth {
	one := corev1.ResourceHealth{
		ResourceID: corev1.ResourceID(fmt.Sprintf("%s/%s/%s", driver, device.PoolName, device.DeviceName)),
	}
	if len(device.CDIDeviceIDs) > 0 {
		one.ResourceID = corev1.ResourceID(device.CDIDeviceIDs[0])
	}
	if !d.registered[driver] {
		return one
	}
	one.Health = corev1.ResourceHealthStatusUnknown
	for _, p := range slices.Backward(d.drivers[driver]) { // the newest instance that reports it
		if p.health == nil {
			continue
		}
		if found, has := p.health.devices[deviceKey{device.PoolName, device.DeviceName}]; has {
			one.Health = found.status
			if found.message != "" && d.cfg.HealthMessages {
				one.Message = new(found.message)
			}
			return one
		}
		if !p.health.known {
			one.Health = ""
		}
	}
	return one
}

// holders returns the pods that have a device of a driver that is chosen.
func (r recorded) holders(driver string, chosen func(deviceKey) bool) []types.UID {
	return r.podsOf(func(c *claim) bool {
		return slices.ContainsFunc(c.DriverState[driver].Devices, func(device checkpoint.Device) bool {
			return chosen(deviceKey{device.PoolName, device.DeviceName})
		})
	})
}

// allDevices reports whether a device is chosen when all are: true.
func allDevices(deviceKey) bool { return true }

// healthChanged passes on that the health of the devices of these pods may have changed.
func (d *DRA) healthChanged(pods []types.UID) {
	if len(pods) > 0 {
		d.cfg.HealthChanged(pods)
	}
}
