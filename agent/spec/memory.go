package spec

import (
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Files of the memory controller on cgroup v2.
const (
	memoryMin     = "memory.min"
	memoryLow     = "memory.low"
	memoryHigh    = "memory.high"
	memorySwapMax = "memory.swap.max"
)

// setSwap bounds the container's swap. Without a swap controller there is nothing to set.
func setSwap(out *runtimeapi.LinuxContainerResources, pod *corev1.Pod, c *corev1.Container, node *Node) {
	if !node.Swap.Controller {
		return
	}
	if !node.CgroupV2 {
		// Memory and swap together: as much as memory alone.
		out.MemorySwapLimitInBytes = out.MemoryLimitInBytes
		return
	}
	setUnified(out, map[string]string{memorySwapMax: strconv.FormatInt(swapLimit(pod, c, node), 10)})
}

// swapLimit is the container's share of the node's swap, by the share of its memory it requests (KEP-2400). Only burstable
// pods get any, and only containers that ask for some memory but not for a fixed amount.
func swapLimit(pod *corev1.Pod, c *corev1.Container, node *Node) int64 {
	request := c.Resources.Requests.Memory()
	capacity := node.memoryCapacity()
	if !mayShareSwap(pod, c, node) {
		return 0
	}
	if capacity <= 0 || request.Value() > capacity {
		return 0
	}
	return int64(float64(request.Value()) / float64(capacity) * float64(node.Swap.Capacity))
}

// MaySwap tells whether a container has a share of the node's swap.
func MaySwap(pod *corev1.Pod, c *corev1.Container, node *Node) bool {
	return node.CgroupV2 && node.Swap.Controller && node.Swap.Capacity > 0 && mayShareSwap(pod, c, node)
}

func mayShareSwap(pod *corev1.Pod, c *corev1.Container, node *Node) bool {
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	return node.Swap.Limited && !podutil.IsCritical(pod) && podutil.QOS(pod) == corev1.PodQOSBurstable && request.Cmp(*limit) != 0
}

// setMemoryQoS protects requested memory and slows a container down before it reaches its limit (KEP-2570). memory.high
// lies at the throttling factor's part of the way from the request to the limit, or to the node's allocatable memory.
func setMemoryQoS(out *runtimeapi.LinuxContainerResources, pod *corev1.Pod, c *corev1.Container, node *Node) {
	qos := node.MemoryQoS
	if qos == nil || !node.CgroupV2 {
		return
	}
	request, limit := c.Resources.Requests.Memory().Value(), c.Resources.Limits.Memory().Value()
	unified := map[string]string{}
	switch {
	case request == 0 || !qos.Tiered:
		unified[memoryMin], unified[memoryLow] = "0", "0"
	case podutil.QOS(pod) == corev1.PodQOSGuaranteed:
		unified[memoryMin] = strconv.FormatInt(request, 10)
	default:
		unified[memoryLow] = strconv.FormatInt(request, 10)
	}
	if request != limit {
		ceiling := limit
		if ceiling == 0 {
			ceiling = node.Allocatable.Memory().Value()
		}
		high := float64(request) + float64(ceiling-request)*qos.ThrottlingFactor
		if pages := wholePages(high, qos.PageSize); pages > request {
			unified[memoryHigh] = strconv.FormatInt(pages, 10)
		}
	}
	setUnified(out, unified)
}

func wholePages(bytes float64, pageSize int64) int64 {
	if pageSize <= 0 {
		return int64(bytes)
	}
	return int64(bytes) / pageSize * pageSize
}

func setUnified(out *runtimeapi.LinuxContainerResources, values map[string]string) {
	if out.Unified == nil {
		out.Unified = map[string]string{}
	}
	maps.Copy(out.Unified, values)
}
