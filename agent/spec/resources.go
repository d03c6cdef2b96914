package spec

import (
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// The kernel's bounds for the weight and the quota of a cgroup.
const (
	minShares     = 2
	maxShares     = 262144
	minQuota      = 1000 // µs
	defaultPeriod = 100 * time.Millisecond
)

// ContainerResources returns the limits of a container; they are for its creation and for a later change alike. Where the
// container has no limit of its own for CPU or memory, the pod's holds. exclusiveCPUs takes the CPU quota away.
func ContainerResources(pod *corev1.Pod, c *corev1.Container, node *Node, exclusiveCPUs bool) *runtimeapi.LinuxContainerResources {
	out := linuxResources(node, c.Resources.Requests, limitsOf(pod, c), exclusiveCPUs)
	out.OomScoreAdj = OOMScoreAdj(pod, c, node.memoryCapacity())
	out.HugepageLimits = hugepageLimits(pod, c, node)
	setSwap(out, pod, c, node)
	setMemoryQoS(out, pod, c, node)
	return out
}

// SandboxResources returns what the pod as a whole may use, and the overhead of its sandbox, for runtimes that size a
// virtual machine by it.
func SandboxResources(pod *corev1.Pod, node *Node, exclusiveCPUs bool) (resources, overhead *runtimeapi.LinuxContainerResources) {
	opts := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	resources = linuxResources(node, resourcehelper.PodRequests(pod, opts), resourcehelper.PodLimits(pod, opts), exclusiveCPUs)
	overhead = &runtimeapi.LinuxContainerResources{}
	if o := pod.Spec.Overhead; o != nil {
		request := corev1.ResourceList{corev1.ResourceCPU: *o.Cpu()}
		overhead = linuxResources(node, request, o, false)
	}
	return resources, overhead
}

// limitsOf are the container's limits for CPU and memory, filled up from the pod's.
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

// EffectiveResources are the CPU and memory that a container may use: its own requests, its own limits, and the pod's limits
// where it has none.
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

// linuxResources turns CPU and memory into the terms of cgroups. A request that is missing is the limit.
func linuxResources(node *Node, requests, limits corev1.ResourceList, noQuota bool) *runtimeapi.LinuxContainerResources {
	request, ok := requests[corev1.ResourceCPU]
	if !ok {
		request = limits[corev1.ResourceCPU]
	}
	out := &runtimeapi.LinuxContainerResources{
		CpuShares:          cpuShares(request),
		MemoryLimitInBytes: limits.Memory().Value(),
	}
	if node.CPUCFSQuota {
		out.CpuPeriod = node.quotaPeriod()
		out.CpuQuota = cpuQuota(*limits.Cpu(), out.CpuPeriod)
		if noQuota {
			out.CpuQuota = -1
		}
	}
	if node.CgroupV2 && !node.SingleProcessOOMKill {
		out.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return out
}

// cpuShares is the CPU weight: 1024 a CPU.
func cpuShares(cpu resource.Quantity) int64 {
	return min(max(cpu.MilliValue()*1024/1000, minShares), maxShares)
}

// cpuQuota is the CPU time in µs of a period; 0, which sets no limit, for no CPU.
func cpuQuota(cpu resource.Quantity, period int64) int64 {
	if cpu.IsZero() {
		return 0
	}
	return max(cpu.MilliValue()*period/1000, minQuota)
}

// quotaPeriod is the CFS period in µs.
func (n *Node) quotaPeriod() int64 {
	if n.CPUCFSQuotaPeriod > 0 {
		return n.CPUCFSQuotaPeriod.Microseconds()
	}
	return defaultPeriod.Microseconds()
}

// hugepageLimits sets a limit for each page size the kernel has; no huge pages are free for all.
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
	for name, q := range resources {
		if size, ok := HugepageSize(name); ok {
			limits[pageSizeName(size)] = uint64(q.Value())
		}
	}
}

// HugepageSize returns the page size in bytes of a resource such as hugepages-2Mi. It is false for other resources.
func HugepageSize(name corev1.ResourceName) (int64, bool) {
	text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
	if !ok {
		return 0, false
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Value() <= 0 {
		return 0, false
	}
	return q.Value(), true
}

// pageSizeName writes a page size as the files of the hugetlb controller have it, for example 2MB.
func pageSizeName(size int64) string {
	units := [...]string{"B", "KB", "MB", "GB", "TB", "PB"}
	i := 0
	for size%1024 == 0 && i < len(units)-1 {
		size /= 1024
		i++
	}
	return strconv.FormatInt(size, 10) + units[i]
}
