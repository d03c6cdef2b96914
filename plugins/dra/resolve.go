package dra

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reference is a ResourceClaim that a pod refers to.
type reference struct {
	name string
	// owned: it was created for this pod.
	owned bool
}

// references returns the ResourceClaims that a pod refers to.
func references(pod *corev1.Pod) (all []reference, err error) {
	for i := range pod.Spec.ResourceClaims {
		r, err := resolve(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if r.name != "" {
			all = append(all, r)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		all = append(all, reference{name: s.ResourceClaimName})
	}
	return all, nil
}

// resolve returns the object that an entry of spec.resourceClaims stands for; without a name if the pod needs none.
func resolve(pod *corev1.Pod, entry *corev1.PodResourceClaim) (reference, error) {
	if entry.ResourceClaimName != nil {
		return reference{name: *entry.ResourceClaimName}, nil
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name == entry.Name && s.ResourceClaimName == nil {
			return reference{}, nil
		}
		if s.Name == entry.Name {
			return reference{name: *s.ResourceClaimName, owned: true}, nil
		}
	}
	return reference{}, fmt.Errorf("pod %q: ResourceClaim not created yet for %s", pod.Namespace+"/"+pod.Name, entry.Name)
}

// check refuses a ResourceClaim that a pod may not use, with the kubelet's message.
func check(pod *corev1.Pod, r reference, c *resourcev1.ResourceClaim) error {
	if r.owned && !metav1.IsControlledBy(c, pod) {
		return fmt.Errorf("ResourceClaim %s/%s was not created for Pod %s/%s (Pod is not owner)", c.Namespace, c.Name,
			pod.Namespace, pod.Name)
	}
	if !slices.ContainsFunc(c.Status.ReservedFor,
		func(user resourcev1.ResourceClaimConsumerReference) bool { return user.UID == pod.UID }) {
		return fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", pod.Name, pod.UID, c.Name, c.UID)
	}
	if c.Status.Allocation == nil {
		return fmt.Errorf("ResourceClaim %s: not allocated", c.Name)
	}
	return nil
}

// driversOf returns the drivers that have devices in an allocation, sorted.
func driversOf(allocated []resourcev1.DeviceRequestAllocationResult) (names []string) {
	for _, r := range allocated {
		names = append(names, r.Driver)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// demand is what a container needs of a ResourceClaim: one request, or everything if request is empty.
type demand struct{ claim, request string }

// demands returns what a container needs by its spec.
func demands(pod *corev1.Pod, c *corev1.Container) (all []demand, err error) {
	for i := range pod.Spec.ResourceClaims {
		entry := &pod.Spec.ResourceClaims[i]
		for _, use := range c.Resources.Claims {
			if use.Name != entry.Name {
				continue
			}
			r, err := resolve(pod, entry)
			if err != nil {
				return nil, err
			}
			if r.name != "" {
				all = append(all, demand{r.name, use.Request})
			}
		}
	}
	return append(all, extendedDemands(pod, c)...), nil
}

// extendedDemands returns the extended resources that the scheduler has turned into requests of a ResourceClaim.
func extendedDemands(pod *corev1.Pod, c *corev1.Container) (all []demand) {
	s := pod.Status.ExtendedResourceClaimStatus
	if s == nil {
		return nil
	}
	for _, m := range s.RequestMappings {
		if q := c.Resources.Requests[corev1.ResourceName(m.ResourceName)]; m.ContainerName == c.Name && !q.IsZero() {
			all = append(all, demand{s.ResourceClaimName, m.RequestName})
		}
	}
	return all
}

// serves reports whether a device with these requests serves one of them. A request with alternatives is named without
// the alternative that was chosen.
func serves(requests []string, request string) bool {
	return request == "" || len(requests) == 0 || slices.ContainsFunc(requests, func(r string) bool {
		base, _, _ := strings.Cut(r, "/")
		return r == request || base == request
	})
}
