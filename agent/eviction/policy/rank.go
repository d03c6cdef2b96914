package policy

import (
	"cmp"
	"slices"
	"sort"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Usage is what a pod uses. Known: it could be measured.
type Usage struct {
	Known bool
	// Memory and Disk are in bytes, Inodes counts files, Processes counts processes and threads.
	Memory, Disk, Inodes, Processes int64
}

// Pod is a pod with what it uses.
type Pod struct {
	*corev1.Pod
	Usage
}

// Rank returns the pods in the order in which they are evicted for a signal: those that use more than they request
// first (not for processes, which cannot be requested), then those of lower priority, then those that use most beyond
// their request. Critical pods are left out: they are never evicted.
func Rank(signal string, pods []Pod) []Pod {
	all := slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool { return podutil.IsCritical(p.Pod) })
	sort.SliceStable(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		priority := cmp.Compare(podutil.Priority(a.Pod), podutil.Priority(b.Pod))
		if signal == PIDAvailable {
			return cmp.Or(priority, cmp.Compare(b.Processes, a.Processes)) < 0
		}
		return cmp.Or(
			cmp.Compare(a.group(signal), b.group(signal)),
			priority,
			cmp.Compare(b.beyond(signal), a.beyond(signal)),
		) < 0
	})
	return all
}

// beyond returns how much more than its request a pod uses of the resource of a signal.
func (p *Pod) beyond(signal string) int64 {
	requests := resourcehelper.PodRequests(p.Pod, resourcehelper.PodResourcesOptions{})
	switch resourceOf(signal) {
	case "memory":
		return p.Memory - podutil.Amount(requests, corev1.ResourceMemory)
	case "inodes":
		return p.Inodes
	}
	return p.Disk - podutil.Amount(requests, corev1.ResourceEphemeralStorage)
}

// group returns the place of a pod among those of all priorities: pods of which nothing is known come first, then those
// that use more than they request.
func (p *Pod) group(signal string) int {
	switch {
	case !p.Known:
		return 0
	case p.beyond(signal) > 0:
		return 1
	}
	return 2
}
