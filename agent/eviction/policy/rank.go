package policy

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
	slices.SortStableFunc(all, func(a, b Pod) int {
		priority := cmp.Compare(podutil.Priority(a.Pod), podutil.Priority(b.Pod))
		if signal == PIDAvailable {
			return cmp.Or(priority, cmp.Compare(b.Processes, a.Processes))
		}
		moreA, moreB := a.beyond(signal), b.beyond(signal)
		return cmp.Or(
			trueFirst(!a.Known, !b.Known),
			trueFirst(moreA > 0, moreB > 0),
			priority,
			cmp.Compare(moreB, moreA),
		)
	})
	return all
}

// beyond returns how much more than its request a pod uses of the resource of a signal.
func (p *Pod) beyond(signal string) int64 {
	requests := resourcehelper.PodRequests(p.Pod, resourcehelper.PodResourcesOptions{})
	switch resourceOf(signal) {
	case "memory":
		return p.Memory - requests.Memory().Value()
	case "inodes":
		return p.Inodes
	}
	return p.Disk - requests.StorageEphemeral().Value()
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// Message is the status message of an evicted pod.
func Message(t *Threshold, levels map[string]Level, p Pod) string {
	text := fmt.Sprintf("The node was low on resource: %s. ", resourceOf(t.Signal))
	if l, known := levels[t.Signal]; known {
		text += fmt.Sprintf("Threshold quantity: %s, available: %s. ",
			quantity(t.Signal, t.Value.of(l.Capacity)), quantity(t.Signal, l.Available))
	}
	if p.Known && resourceOf(t.Signal) == "memory" {
		requests := resourcehelper.PodRequests(p.Pod, resourcehelper.PodResourcesOptions{})
		text += fmt.Sprintf("The pod was using %s, request is %s. ", quantity(t.Signal, p.Memory), requests.Memory())
	}
	return text
}

// quantity formats an amount of the resource of a signal as the kubelet does.
func quantity(signal string, n int64) string {
	switch resourceOf(signal) {
	case "inodes", "pids":
		return resource.NewQuantity(n, resource.DecimalSI).String()
	case "memory":
		return fmt.Sprintf("%dKi", n/1024)
	}
	return resource.NewQuantity(n, resource.BinarySI).String()
}

// Attempt is the message of the event that resources are being freed.
func Attempt(t *Threshold) string { return "Attempting to reclaim " + resourceOf(t.Signal) }
