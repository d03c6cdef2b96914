package spec

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/nodelet/nodelet/host/cgroups/cpu"
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
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	cpuLimited := podutil.Limits(&pod.Spec, corev1.ResourceCPU)
	memoryLimited := podutil.Limits(&pod.Spec, corev1.ResourceMemory)
	class := podutil.QOS(pod)
	out := PodResources{
		CPUShares: cpu.Shares(podutil.Amount(requests, corev1.ResourceCPU)),
		Hugepages: podHugepages(requests),
		Unified:   podMemoryQoS(pod, requests, limits, node),
	}
	switch class {
	case corev1.PodQOSBestEffort:
		out.CPUShares = cpu.MinShares
		cpuLimited, memoryLimited = false, false
	case corev1.PodQOSGuaranteed:
		cpuLimited, memoryLimited = true, true
	}
	if cpuLimited {
		period := node.quotaPeriod()
		quota := cpu.Quota(podutil.Amount(limits, corev1.ResourceCPU), period)
		if !node.CPUCFSQuota || exclusivePod(pod, node) {
			quota = -1
		}
		out.CPUQuota, out.CPUPeriod = &quota, &period
	}
	if memoryLimited {
		memory := podutil.Amount(limits, corev1.ResourceMemory)
		out.Memory = &memory
	}
	if node.PodPidsLimit > 0 {
		pids := node.PodPidsLimit
		out.Pids = &pids
	}
	return out
}

func podHugepages(requests corev1.ResourceList) map[int64]int64 {
	out := map[int64]int64{}
	for name := range requests {
		if size, ok := HugepageSize(name); ok {
			out[size] = podutil.Sum(out[size], podutil.Amount(requests, name))
		}
	}
	return out
}

// podMemoryQoS returns the files of cgroup v2 that protect and throttle the memory of the whole pod (KEP-2570), or nil.
func podMemoryQoS(pod *corev1.Pod, requests, limits corev1.ResourceList, node *Node) map[string]string {
	if !node.CgroupV2 {
		return nil
	}
	qos, out := node.MemoryQoS, map[string]string{}
	request := podutil.Amount(requests, corev1.ResourceMemory)
	if qos != nil && qos.Tiered && request > 0 {
		file := memoryLow
		if podutil.QOS(pod) == corev1.PodQOSGuaranteed {
			file = memoryMin
		}
		out[file] = strconv.FormatInt(request, 10)
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) && podutil.Limits(&pod.Spec, corev1.ResourceMemory) {
		out[memoryHigh] = qos.high(request, podutil.Amount(limits, corev1.ResourceMemory))
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
