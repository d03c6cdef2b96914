package spec

import (
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/host/cgroups/cpu"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// PodResources are the settings of the pod's own cgroup, the parent of its containers' cgroups.
type PodResources struct {
	Size podstate.Size
	// Pids bounds the number of processes; 0 means no limit.
	Pids int64
	// Hugepages are limits in bytes by page size in bytes. For other sizes the pod gets no huge pages.
	Hugepages map[int64]int64
	// unified are further files of cgroup v2 and their content.
	unified map[string]string
}

// Unified returns further files of cgroup v2 and their content for a cgroup that has, or gets, this memory limit. Where
// throttling begins follows from the limit of Size: a cgroup with another one keeps what it has.
func (r PodResources) Unified(memory int64) map[string]string {
	if memory == r.Size.Memory {
		return r.unified
	}
	files := maps.Clone(r.unified)
	delete(files, memoryHigh)
	return files
}

// PodCgroup returns the settings of the pod's cgroup.
func PodCgroup(pod *corev1.Pod, node *Node) PodResources {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	cpuLimited := podutil.Limits(&pod.Spec, corev1.ResourceCPU)
	memoryLimited := podutil.Limits(&pod.Spec, corev1.ResourceMemory)
	class := podutil.QOS(pod)
	out := PodResources{
		Size:      podstate.Size{Shares: cpu.Shares(podutil.Amount(requests, corev1.ResourceCPU))},
		Pids:      max(0, node.PodPidsLimit),
		Hugepages: podHugepages(requests),
		unified:   podMemoryQoS(pod, requests, limits, node),
	}
	switch class {
	case corev1.PodQOSBestEffort:
		out.Size.Shares = cpu.MinShares
		cpuLimited, memoryLimited = false, false
	case corev1.PodQOSGuaranteed:
		cpuLimited, memoryLimited = true, true
	}
	if cpuLimited && node.CPUCFSQuota { // a kernel without CFS bandwidth control has no file for a quota
		out.Size.Period = node.quotaPeriod()
		out.Size.Quota = cpu.Quota(podutil.Amount(limits, corev1.ResourceCPU), out.Size.Period)
		if exclusivePod(pod, node) {
			out.Size.Quota = -1
		}
	}
	if memoryLimited {
		out.Size.Memory = podutil.Amount(limits, corev1.ResourceMemory)
	}
	return out
}

func podHugepages(requests corev1.ResourceList) map[int64]int64 {
	out := map[int64]int64{}
	for name := range requests {
		if size, ok := podutil.HugePageSize(name); ok {
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
