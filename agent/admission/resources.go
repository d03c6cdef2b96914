package admission

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// shortage is a resource of which a pod requests more than is free. Its numbers are in the unit of podutil.Amount.
type shortage struct {
	name                      corev1.ResourceName
	requested, used, capacity int64
}

// missing returns how much more must be free.
func (s shortage) missing() int64 { return podutil.Sum(s.requested, s.used-s.capacity) }

func (s shortage) rejection() *podstate.Rejection {
	return reject(outOf+string(s.name),
		fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
			s.name, s.requested, s.used, s.capacity))
}

// shortages lists the resources of which the pod requests more than is free, always in the same order.
func shortages(pod *corev1.Pod, allocatable corev1.ResourceList, others []*corev1.Pod) (all []shortage) {
	pods := shortage{corev1.ResourcePods, 1, int64(len(others)), allocatable.Pods().Value()}
	if pods.missing() > 0 {
		all = append(all, pods)
	}
	requests := requestsOf(pod)
	names := slices.SortedFunc(maps.Keys(requests), func(a, b corev1.ResourceName) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	used := map[corev1.ResourceName]int64{}
	for _, other := range others {
		has := held(other)
		for _, name := range names {
			used[name] = podutil.Sum(used[name], podutil.Amount(has, name))
		}
	}
	for _, name := range names {
		_, offered := allocatable[name]
		if !counted(name) || extended(name) && !offered {
			continue // an extended resource that the node does not offer is a cluster-level one
		}
		s := shortage{name, podutil.Amount(requests, name), used[name], podutil.Amount(allocatable, name)}
		if s.requested > 0 && s.missing() > 0 {
			all = append(all, s)
		}
	}
	return all
}

// held returns what an admitted pod holds: what it requests or, until a resize to less is done, what its status shows.
// A runtime does not take memory away that a container uses.
func held(pod *corev1.Pod) corev1.ResourceList {
	all := requestsOf(pod)
	if has := pod.Status.Resources; has != nil {
		for _, name := range podutil.ComputeResources {
			if amount := has.Requests[name]; amount.Cmp(all[name]) > 0 {
				all[name] = amount
			}
		}
	}
	all[corev1.ResourcePods] = *apiresource.NewQuantity(1, apiresource.DecimalSI)
	return all
}

// requestsOf returns what a pod requests from the node, without the extended resources that a ResourceClaim provides.
func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	all := resource.PodRequests(pod, resource.PodResourcesOptions{})
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		for _, m := range s.RequestMappings {
			delete(all, corev1.ResourceName(m.ResourceName))
		}
	}
	return all
}

// rank returns the position of a resource in the order of shortages.
func rank(name corev1.ResourceName) int {
	switch name {
	case corev1.ResourceCPU:
		return 0
	case corev1.ResourceMemory:
		return 1
	case corev1.ResourceEphemeralStorage:
		return 2
	}
	return 3
}

// counted reports whether nodes have a capacity for the resource.
func counted(name corev1.ResourceName) bool {
	return rank(name) < 3 || extended(name) || podutil.IsHugePages(name) ||
		strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix) ||
		strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix)
}

// extended reports whether a resource is an extended one: outside the domain kubernetes.io, and not the name of a
// quota.
func extended(name corev1.ResourceName) bool {
	return !podutil.IsNative(name) && !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
}
