package spec

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// PodResources are the settings of the pod's own cgroup, the parent of its containers' cgroups. A nil field leaves the
// setting unchanged.
type PodResources struct {
	// CPUShares is the CPU weight in cgroup v1 terms, from 2 to 262144.
	CPUShares int64
	// CPUQuota is in µs of CPUPeriod, which is in µs too; -1 means no limit, 0 leaves the kernel's setting.
	CPUQuota  *int64
	CPUPeriod *int64
	// Memory is the limit in bytes.
	Memory *int64
	// Pids bounds the number of processes.
	Pids *int64
	// Hugepages are limits in bytes by page size in bytes. For other sizes the pod gets no huge pages.
	Hugepages map[int64]int64
	// Unified are further files of cgroup v2 and their content.
	Unified map[string]string
}

// PodCgroup returns the settings of the pod's cgroup.
func PodCgroup(pod *corev1.Pod, node *Node) PodResources {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits, cpuLimited, memoryLimited := podLimits(pod)
	class := podutil.QOS(pod)
	out := PodResources{
		CPUShares: podutil.CPUShares(requests.Cpu().MilliValue()),
		Hugepages: podHugepages(requests),
		Unified:   podMemoryQoS(class, requests.Memory().Value(), node),
	}
	switch class {
	case corev1.PodQOSBestEffort:
		out.CPUShares, cpuLimited, memoryLimited = podutil.MinCPUShares, false, false
	case corev1.PodQOSGuaranteed:
		cpuLimited, memoryLimited = true, true
	}
	if cpuLimited {
		period := node.quotaPeriod()
		quota := podutil.CPUQuota(limits.Cpu().MilliValue(), period)
		if !node.CPUCFSQuota {
			quota = -1
		}
		out.CPUQuota, out.CPUPeriod = &quota, &period
	}
	if memoryLimited {
		memory := limits.Memory().Value()
		out.Memory = &memory
	}
	if node.PodPidsLimit > 0 {
		pids := node.PodPidsLimit
		out.Pids = &pids
	}
	return out
}

// podLimits returns the limits of the whole pod. cpu and memory report whether the limit applies to the pod's cgroup:
// the pod itself or each of its containers must have one. A sum that leaves out a container is not a limit.
func podLimits(pod *corev1.Pod) (limits corev1.ResourceList, cpu, memory bool) {
	cpu, memory = true, true
	limits = resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{
		ContainerFn: func(r corev1.ResourceList, _ resourcehelper.ContainerType) {
			cpu = cpu && !r.Cpu().IsZero()
			memory = memory && !r.Memory().IsZero()
		},
	})
	if r := pod.Spec.Resources; r != nil {
		cpu = cpu || !r.Limits.Cpu().IsZero()
		memory = memory || !r.Limits.Memory().IsZero()
	}
	return limits, cpu, memory
}

func podHugepages(requests corev1.ResourceList) map[int64]int64 {
	out := map[int64]int64{}
	for name, q := range requests {
		if size, ok := HugepageSize(name); ok {
			out[size] += q.Value()
		}
	}
	return out
}

func podMemoryQoS(class corev1.PodQOSClass, request int64, node *Node) map[string]string {
	if node.MemoryQoS == nil || !node.MemoryQoS.Tiered || !node.CgroupV2 || request <= 0 {
		return nil
	}
	file := memoryLow
	if class == corev1.PodQOSGuaranteed {
		file = memoryMin
	}
	return map[string]string{file: strconv.FormatInt(request, 10)}
}
