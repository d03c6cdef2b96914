package pod

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// QOS is the pod's quality of service class: the one that its status records, else the one that follows
// from its requests and limits of CPU and memory. The recorded one counts first because a class never
// changes while the pod exists, and the names of cgroups contain it. Pod-level resources, where there are
// some, decide alone; ephemeral containers have none.
func QOS(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	sum := qosSum{limited: true}
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		sum.add(pod.Spec.Resources)
		return sum.class()
	}
	for _, c := range ContainersWithResources(&pod.Spec) {
		sum.add(&c.Resources)
	}
	return sum.class()
}

// ComputeResources are CPU and memory: they decide about the QoS class and can change while a pod runs.
var ComputeResources = [2]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// qosSum adds up CPU and memory, the only resources that count for the class.
type qosSum struct {
	requests [2]resource.Quantity
	limits   [2]resource.Quantity
	// limited: everything that was added limits both resources.
	limited bool
}

func (s *qosSum) add(r *corev1.ResourceRequirements) {
	for i, name := range ComputeResources {
		if q := r.Requests[name]; q.Sign() > 0 {
			s.requests[i].Add(q)
		}
		q := r.Limits[name]
		s.limited = s.limited && q.Sign() > 0
		if q.Sign() > 0 {
			s.limits[i].Add(q)
		}
	}
}

func (s *qosSum) class() corev1.PodQOSClass {
	empty, equal := true, true
	for i := range ComputeResources {
		empty = empty && s.requests[i].Sign() == 0 && s.limits[i].Sign() == 0
		equal = equal && s.requests[i].Cmp(s.limits[i]) == 0
	}
	switch {
	case empty:
		return corev1.PodQOSBestEffort
	case s.limited && equal:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// IsGuaranteed reports whether a container alone meets the conditions of the class Guaranteed: it requests CPU and
// memory, and its limits are equal to its requests.
func IsGuaranteed(c *corev1.Container) bool {
	for _, name := range ComputeResources {
		request := c.Resources.Requests[name]
		if limit := c.Resources.Limits[name]; request.IsZero() || request.Cmp(limit) != 0 {
			return false
		}
	}
	return true
}

// IsNative reports whether a resource is one of Kubernetes: its name has no domain, or one below kubernetes.io.
func IsNative(name corev1.ResourceName) bool {
	n := string(name)
	return !strings.Contains(n, "/") || strings.Contains(n, corev1.ResourceDefaultNamespacePrefix)
}

// SameResources reports whether a and b have equal requests and limits of the named resources, by default those of
// ComputeResources. A quantity that is missing equals 0.
func SameResources(a, b corev1.ResourceRequirements, names ...corev1.ResourceName) bool {
	if len(names) == 0 {
		names = ComputeResources[:]
	}
	for _, name := range names {
		request, limit := a.Requests[name], a.Limits[name]
		if request.Cmp(b.Requests[name]) != 0 || limit.Cmp(b.Limits[name]) != 0 {
			return false
		}
	}
	return true
}
