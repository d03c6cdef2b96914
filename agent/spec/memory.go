package spec

import (
	"cmp"
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

// setSwap limits the container's swap. Without a swap controller it does nothing.
func setSwap(out *runtimeapi.LinuxContainerResources, pod *corev1.Pod, c *corev1.Container, node *Node) {
	if !node.Swap.Controller {
		return
	}
	if !node.CgroupV2 {
		// This is the limit of memory plus swap. It equals the memory limit, so no swap is allowed.
		out.MemorySwapLimitInBytes = out.MemoryLimitInBytes
		return
	}
	setUnified(out, map[string]string{memorySwapMax: strconv.FormatInt(swapLimit(pod, c, node), 10)})
}

// swapLimit returns the container's swap limit in bytes (KEP-2400): the same share of the node's swap as the share of
// the node's memory that it requests. Only containers of burstable pods get swap, and only if their memory request
// differs from their limit.
func swapLimit(pod *corev1.Pod, c *corev1.Container, node *Node) int64 {
	request := c.Resources.Requests.Memory()
	capacity := node.memoryCapacity()
	if !mayShareSwap(pod, c, node) {
		return 0
	}
	if capacity <= 0 || request.CmpInt64(capacity) > 0 {
		return 0
	}
	return int64(float64(request.Value()) / float64(capacity) * float64(node.Swap.Capacity))
}

// MaySwap reports whether a container has a share of the node's swap.
func MaySwap(pod *corev1.Pod, c *corev1.Container, node *Node) bool {
	return node.CgroupV2 && node.Swap.Controller && node.Swap.Capacity > 0 && mayShareSwap(pod, c, node)
}

func mayShareSwap(pod *corev1.Pod, c *corev1.Container, node *Node) bool {
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	return node.Swap.Limited &&
		!podutil.IsCritical(pod) &&
		podutil.QOS(pod) == corev1.PodQOSBurstable &&
		request.Cmp(*limit) != 0
}

// setMemoryQoS protects requested memory, and throttles a container before it reaches its limit (KEP-2570).
func setMemoryQoS(out *runtimeapi.LinuxContainerResources, pod *corev1.Pod, c *corev1.Container, node *Node) {
	if !node.CgroupV2 {
		return
	}
	qos := node.MemoryQoS
	request := podutil.Amount(c.Resources.Requests, corev1.ResourceMemory)
	limit := podutil.Amount(c.Resources.Limits, corev1.ResourceMemory)
	unified := map[string]string{memoryHigh: notThrottled}
	if limit != 0 || !hasMemoryLimit(pod) { // else the pod's cgroup throttles
		unified[memoryHigh] = qos.high(request, cmp.Or(limit, node.Allocatable.Memory().Value()))
	}
	switch {
	case qos == nil:
	case request == 0 || !qos.Tiered:
		unified[memoryMin], unified[memoryLow] = "0", "0"
	case podutil.QOS(pod) == corev1.PodQOSGuaranteed:
		unified[memoryMin] = strconv.FormatInt(request, 10)
	default:
		unified[memoryLow] = strconv.FormatInt(request, 10)
	}
	setUnified(out, unified)
}

// hasMemoryLimit reports whether the pod itself has a memory limit, besides those of its containers.
func hasMemoryLimit(pod *corev1.Pod) bool {
	return pod.Spec.Resources != nil && !pod.Spec.Resources.Limits.Memory().IsZero()
}

// notThrottled is written to memory.high of what is not throttled: it may have been, with another size or before the
// configuration was changed.
const notThrottled = "max"

// high returns where throttling begins, in bytes and whole pages, or notThrottled:
//
//	memory.high = request + (limit - request) * throttling factor
func (q *MemoryQoS) high(request, limit int64) string {
	if q == nil || q.ThrottlingFactor == 0 || limit == 0 || request == limit {
		return notThrottled
	}
	pages := wholePages(float64(request)+float64(limit-request)*q.ThrottlingFactor, q.PageSize)
	if pages <= request {
		return notThrottled
	}
	return strconv.FormatInt(pages, 10)
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
