package eviction

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Usage is what a pod uses of what may run short. It is only measured when a pod has to go.
type Usage struct {
	Known                           bool
	Memory, Disk, Inodes, Processes int64 // bytes, bytes, files, processes and threads
}

// Pod is a pod with what it uses.
type Pod struct {
	*corev1.Pod
	Usage
}

// Rank puts the pods into the order in which they go for a signal: those that use more than they have asked for first (not for
// processes, of which nobody asks for any), then those of lower priority, then those that use most beyond their request.
// Critical pods are left out: they never go.
func Rank(signal string, pods []Pod) []Pod {
	all := slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool { return podutil.IsCritical(p.Pod) })
	slices.SortStableFunc(all, func(a, b Pod) int {
		if signal == PIDAvailable {
			return cmp.Or(cmp.Compare(podutil.Priority(a.Pod), podutil.Priority(b.Pod)), cmp.Compare(b.Processes, a.Processes))
		}
		return cmp.Or(trueFirst(!a.Known, !b.Known), trueFirst(a.beyond(signal) > 0, b.beyond(signal) > 0),
			cmp.Compare(podutil.Priority(a.Pod), podutil.Priority(b.Pod)), cmp.Compare(b.beyond(signal), a.beyond(signal)))
	})
	return all
}

// beyond is how much more than its request a pod uses of what a signal is about.
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

// Message tells people why a pod was evicted.
func Message(t *Threshold, levels map[string]Level, p Pod) string {
	text := fmt.Sprintf("The node was low on resource: %s. ", resourceOf(t.Signal))
	if l, known := levels[t.Signal]; known {
		text += fmt.Sprintf("Threshold quantity: %s, available: %s. ", spell(t.Signal, t.Value.of(l.Capacity)), spell(t.Signal, l.Available))
	}
	if p.Known && resourceOf(t.Signal) == "memory" {
		requests := resourcehelper.PodRequests(p.Pod, resourcehelper.PodResourcesOptions{})
		text += fmt.Sprintf("The pod was using %s, request is %s. ", spell(t.Signal, p.Memory), requests.Memory())
	}
	return text
}

// spell writes an amount of what a signal is about: bytes in powers of two as the kubelet does.
func spell(signal string, n int64) string {
	switch resourceOf(signal) {
	case "inodes", "pids":
		return resource.NewQuantity(n, resource.DecimalSI).String()
	case "memory":
		return fmt.Sprintf("%dKi", n/1024)
	}
	return resource.NewQuantity(n, resource.BinarySI).String()
}

// Attempt tells people that something is being freed.
func Attempt(t *Threshold) string { return "Attempting to reclaim " + resourceOf(t.Signal) }
