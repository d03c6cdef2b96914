package plan

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// qosClass is the pod's QoS class: what the API server has set, else by the rule for its requests and limits of CPU and
// memory. Pod-level resources, where there are some, decide alone.
func qosClass(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	spec := &pod.Spec
	if spec.Resources != nil {
		return classOf([]*corev1.ResourceRequirements{spec.Resources})
	}
	var all []*corev1.ResourceRequirements
	for i := range spec.Containers {
		all = append(all, &spec.Containers[i].Resources)
	}
	for i := range spec.InitContainers {
		all = append(all, &spec.InitContainers[i].Resources)
	}
	return classOf(all)
}

// classOf: no request or limit is BestEffort; every limit set and equal to its request is Guaranteed.
func classOf(all []*corev1.ResourceRequirements) corev1.PodQOSClass {
	any, guaranteed := false, true
	for _, r := range all {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := r.Requests[name], r.Limits[name]
			any = any || request.Sign() > 0 || limit.Sign() > 0
			guaranteed = guaranteed && limit.Sign() > 0 && request.Cmp(limit) == 0
		}
	}
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// podResources shows what the pod holds as a whole. It is worked out once for each generation of the spec.
func (v *view) podResources(st *corev1.PodStatus) {
	if v.d.Grant != nil {
		v.grantedResources(st)
		return
	}
	if told := v.o.Memory.Told; told != nil && told.ObservedGeneration == v.d.Pod.Generation && told.Resources != nil {
		st.AllocatedResources, st.Resources = told.AllocatedResources, told.Resources
		return
	}
	requests := resource.PodRequests(v.d.Pod, resource.PodResourcesOptions{})
	limits := resource.PodLimits(v.d.Pod, resource.PodResourcesOptions{})
	st.AllocatedResources = requests
	st.Resources = &corev1.ResourceRequirements{Requests: requests, Limits: limits}
}
