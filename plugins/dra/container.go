package dra

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Devices returns the CDI devices that a container of a pod has by its ResourceClaims, each once.
func (d *DRA) Devices(pod *corev1.Pod, c *corev1.Container) (names []string, err error) {
	all, err := demands(pod, c)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, want := range all {
		claim := d.claims[types.NamespacedName{Namespace: pod.Namespace, Name: want.claim}]
		if claim == nil {
			return nil, fmt.Errorf("ResourceClaim %s is not prepared on this node", want.claim)
		}
		for _, driver := range slices.Sorted(maps.Keys(claim.DriverState)) {
			for _, device := range claim.DriverState[driver].Devices {
				if serves(device.RequestNames, want.request) {
					names = append(names, device.CDIDeviceIDs...)
				}
			}
		}
	}
	return distinct(names), nil
}

// distinct returns names without repetitions.
func distinct(names []string) (out []string) {
	for _, name := range names {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// Resources returns the ResourceClaims of a container with all their devices, for the pod resources API.
func (d *DRA) Resources(pod *corev1.Pod, c *corev1.Container) (out []*podresources.DynamicResource) {
	all, err := demands(pod, c)
	if err != nil {
		return nil // it has nothing yet
	}
	var seen []string
	for _, want := range all {
		seen = append(seen, want.claim)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range distinct(seen) {
		if claim := d.claims[types.NamespacedName{Namespace: pod.Namespace, Name: name}]; claim != nil {
			out = append(out, claim.resource())
		}
	}
	return out
}

func (c *claim) resource() *podresources.DynamicResource {
	out := &podresources.DynamicResource{ClaimName: c.ClaimName, ClaimNamespace: c.Namespace}
	for _, driver := range slices.Sorted(maps.Keys(c.DriverState)) {
		for _, device := range c.DriverState[driver].Devices {
			one := &podresources.ClaimResource{DriverName: driver, PoolName: device.PoolName, DeviceName: device.DeviceName}
			if device.ShareID != nil {
				one.ShareId = new(string(*device.ShareID))
			}
			for _, id := range device.CDIDeviceIDs {
				one.CdiDevices = append(one.CdiDevices, &podresources.CDIDevice{Name: id})
			}
			out.ClaimResources = append(out.ClaimResources, one)
		}
	}
	return out
}
