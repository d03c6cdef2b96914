package spec

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/host/cgroups/cpu"
	"github.com/nodelet/nodelet/host/cgroups/names"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

const defaultPeriod = 100 * time.Millisecond

// noBound is no limit where 0 means no change.
const noBound = -1

// ContainerResources returns the resources of a container, for its creation and for a later resize. If the container
// has no limit of its own for CPU or memory, the pod's limit applies.
func ContainerResources(pod *corev1.Pod, c *corev1.Container, node *Node) *runtimeapi.LinuxContainerResources {
	out := linuxResources(node, c.Resources.Requests, limitsOf(pod, c))
	if exclusive(pod, c, node) {
		withoutQuota(out)
	}
	out.OomScoreAdj = oomScoreAdj(pod, c, node.memoryCapacity())
	out.HugepageLimits = hugepageLimits(pod, c, node)
	setSwap(out, pod, c, node)
	setMemoryQoS(out, pod, c, node)
	return out
}

// SandboxResources returns what the whole pod may use, and the overhead of its sandbox. Runtimes that run a pod in a
// virtual machine choose its size from them.
func SandboxResources(pod *corev1.Pod, node *Node) (resources, overhead *runtimeapi.LinuxContainerResources) {
	opts := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	resources = linuxResources(node, resourcehelper.PodRequests(pod, opts), resourcehelper.PodLimits(pod, opts))
	if exclusivePod(pod, node) {
		withoutQuota(resources)
	}
	overhead = &runtimeapi.LinuxContainerResources{}
	if o := pod.Spec.Overhead; o != nil {
		request := corev1.ResourceList{corev1.ResourceCPU: *o.Cpu()}
		overhead = linuxResources(node, request, o)
	}
	return resources, overhead
}

// ResizedSandbox returns SandboxResources while the pod's cgroup has a size, which includes the overhead.
func ResizedSandbox(pod *corev1.Pod, node *Node, size podstate.Size) (
	resources, overhead *runtimeapi.LinuxContainerResources) {
	resources, overhead = SandboxResources(pod, node)
	milli := podutil.Amount(pod.Spec.Overhead, corev1.ResourceCPU)
	resources.CpuShares = cpu.Shares(cpu.Milli(size.Shares) - milli)
	resources.CpuQuota, resources.MemoryLimitInBytes = noBound, noBound
	if size.Quota > 0 {
		resources.CpuPeriod = size.Period
		resources.CpuQuota = size.Quota - cpu.Quota(milli, size.Period)
	}
	if size.Memory > 0 {
		resources.MemoryLimitInBytes = size.Memory - overhead.MemoryLimitInBytes
	}
	return resources, overhead
}

// exclusive reports whether a container has CPUs for itself that it must be able to use all the time.
func exclusive(pod *corev1.Pod, c *corev1.Container, node *Node) bool {
	m := node.Managers
	return m.NoQuota && m.HasCPUs != nil && m.HasCPUs(pod, c)
}

// exclusivePod reports whether a quota of the pod would limit a container with CPUs for itself: any of its
// containers, or all of them if the pod has resources of its own.
func exclusivePod(pod *corev1.Pod, node *Node) bool {
	all, one := true, false
	for _, c := range podutil.ContainersWithResources(&pod.Spec) {
		has := exclusive(pod, c, node)
		all, one = all && has, one || has
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		return all && one
	}
	return one
}

// withoutQuota removes the CFS quota.
func withoutQuota(r *runtimeapi.LinuxContainerResources) {
	if r.CpuPeriod != 0 {
		r.CpuQuota = noBound
	}
}

// limitsOf returns the container's limits for CPU and memory. The pod's limit replaces one that is missing.
func limitsOf(pod *corev1.Pod, c *corev1.Container) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, name := range podutil.ComputeResources {
		out[name] = c.Resources.Limits[name]
		if q := out[name]; q.IsZero() && pod.Spec.Resources != nil {
			out[name] = pod.Spec.Resources.Limits[name]
		}
	}
	return out
}

// EffectiveResources returns the CPU and memory that a container may use: its own requests, its own limits, and the
// pod's limits where it has none.
func EffectiveResources(pod *corev1.Pod, c *corev1.Container) corev1.ResourceRequirements {
	var out corev1.ResourceRequirements
	limits := limitsOf(pod, c)
	for _, name := range podutil.ComputeResources {
		if q, ok := c.Resources.Requests[name]; ok {
			setQuantity(&out.Requests, name, q)
		}
		if q := limits[name]; !q.IsZero() {
			setQuantity(&out.Limits, name, q)
		}
	}
	return out
}

func setQuantity(list *corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = q
}

// linuxResources converts CPU and memory to cgroup settings. A missing CPU request is the same as the limit.
func linuxResources(node *Node, requests, limits corev1.ResourceList) *runtimeapi.LinuxContainerResources {
	if _, ok := requests[corev1.ResourceCPU]; !ok {
		requests = limits
	}
	out := &runtimeapi.LinuxContainerResources{
		CpuShares:          cpu.Shares(podutil.Amount(requests, corev1.ResourceCPU)),
		MemoryLimitInBytes: podutil.Amount(limits, corev1.ResourceMemory),
	}
	if node.CPUCFSQuota {
		out.CpuPeriod = node.quotaPeriod()
		out.CpuQuota = cpu.Quota(podutil.Amount(limits, corev1.ResourceCPU), out.CpuPeriod)
	}
	if node.CgroupV2 && !node.SingleProcessOOMKill {
		out.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return out
}

// quotaPeriod returns the CFS period in µs.
func (n *Node) quotaPeriod() int64 {
	if n.CPUCFSQuotaPeriod > 0 {
		return n.CPUCFSQuotaPeriod.Microseconds()
	}
	return defaultPeriod.Microseconds()
}

// hugepageLimits returns a limit for each page size that the kernel supports: 0 where the pod asks for none, because a
// size without a limit would be unlimited.
func hugepageLimits(pod *corev1.Pod, c *corev1.Container, node *Node) []*runtimeapi.HugepageLimit {
	limits := map[string]uint64{}
	if r := pod.Spec.Resources; r != nil {
		addHugepages(limits, r.Limits)
	}
	addHugepages(limits, c.Resources.Limits)
	var out []*runtimeapi.HugepageLimit
	for _, size := range node.HugepageSizes {
		out = append(out, &runtimeapi.HugepageLimit{PageSize: size, Limit: limits[size]})
	}
	return out
}

func addHugepages(limits map[string]uint64, resources corev1.ResourceList) {
	for name := range resources {
		if size, ok := podutil.HugePageSize(name); ok {
			limits[names.PageSize(size)] = uint64(podutil.Amount(resources, name))
		}
	}
}
