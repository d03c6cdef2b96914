package spec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// QOSClass returns the pod's quality of service class: the one its status records, else the one that follows from its
// resources. The recorded one wins because a class never changes in a pod's life, and cgroup names contain it.
func QOSClass(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	sum := qosSum{guaranteed: true}
	if r := pod.Spec.Resources; r != nil {
		sum.add(r.Requests, r.Limits)
		// Limits that leave a resource out are not a guarantee; no limits at all are found out below.
		sum.guaranteed = len(r.Limits) == 0 || limitsBoth(r.Limits)
		return sum.class()
	}
	for kind, c := range Containers(pod) {
		if kind == Ephemeral {
			continue // ephemeral containers have no resources
		}
		sum.add(c.Resources.Requests, c.Resources.Limits)
		sum.guaranteed = sum.guaranteed && limitsBoth(c.Resources.Limits)
	}
	return sum.class()
}

// qosSum adds up CPU and memory, the only resources that count for the class.
type qosSum struct {
	requests   [2]resource.Quantity
	limits     [2]resource.Quantity
	guaranteed bool
}

var qosResources = [2]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

func (s *qosSum) add(requests, limits corev1.ResourceList) {
	for i, name := range qosResources {
		if q := requests[name]; q.Sign() > 0 {
			s.requests[i].Add(q)
		}
		if q := limits[name]; q.Sign() > 0 {
			s.limits[i].Add(q)
		}
	}
}

func (s *qosSum) class() corev1.PodQOSClass {
	any, equal := false, true
	for i := range qosResources {
		any = any || s.requests[i].Sign() > 0 || s.limits[i].Sign() > 0
		equal = equal && s.requests[i].Cmp(s.limits[i]) == 0
	}
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case s.guaranteed && equal:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

func limitsBoth(limits corev1.ResourceList) bool {
	return limits.Cpu().Sign() > 0 && limits.Memory().Sign() > 0
}
