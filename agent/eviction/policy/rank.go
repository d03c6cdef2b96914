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
	beyond := make(map[*corev1.Pod]int64, len(all)) // to add up the requests in each comparison would take long
	for i := range all {
		beyond[all[i].Pod] = all[i].beyond(signal)
	}
	sort.SliceStable(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		priority := cmp.Compare(podutil.Priority(a.Pod), podutil.Priority(b.Pod))
		most := cmp.Compare(beyond[b.Pod], beyond[a.Pod])
		if signal == PIDAvailable {
			return cmp.Or(priority, most) < 0
		}
		return cmp.Or(cmp.Compare(a.group(beyond[a.Pod]), b.group(beyond[b.Pod])), priority, most) < 0
	})
	return all
}

// beyond returns how much more than its request a pod uses of the resource of a signal. Files and processes cannot be
// requested.
func (p *Pod) beyond(signal string) int64 {
	request := func(name corev1.ResourceName) int64 {
		return podutil.Amount(resourcehelper.PodRequests(p.Pod, resourcehelper.PodResourcesOptions{}), name)
	}
	switch resourceOf(signal) {
	case "memory":
		return p.Memory - request(corev1.ResourceMemory)
	case "inodes":
		return p.Inodes
	case "pids":
		return p.Processes
	}
	return p.Disk - request(corev1.ResourceEphemeralStorage)
}

// group returns the place of a pod, by what it uses beyond its request, among those of all priorities: pods of which
// nothing is known come first, then those that use more than they request.
func (p *Pod) group(beyond int64) int {
	switch {
	case !p.Known:
		return 0
	case beyond > 0:
		return 1
	}
	return 2
}
