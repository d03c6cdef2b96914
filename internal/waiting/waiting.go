// Package waiting records which pods wait for something, so that they can be woken when it is there.
//
// It owns a map in memory and never wakes a pod itself: csi, plugins and kube/storage do that with what they take from
// it. After a crash the pods wait again when their steps run again.
package waiting

import "k8s.io/apimachinery/pkg/types"

// Pods are the pods that wait, by what they wait for: the name of a driver, a resource, a volume. The zero value is
// ready. It is not safe for concurrent use.
type Pods[K comparable] struct {
	waiting map[K]map[types.UID]bool
}

// Add adds a pod to those that wait for key.
func (p *Pods[K]) Add(key K, pod types.UID) {
	if p.waiting == nil {
		p.waiting = map[K]map[types.UID]bool{}
	}
	if p.waiting[key] == nil {
		p.waiting[key] = map[types.UID]bool{}
	}
	p.waiting[key][pod] = true
}

// Take returns the pods that wait for key, and forgets them.
func (p *Pods[K]) Take(key K) []types.UID {
	return p.TakeIf(func(k K) bool { return k == key })
}

// TakeIf returns the pods that wait for what is ready, and forgets that. A pod that waits for several is there several
// times.
func (p *Pods[K]) TakeIf(ready func(K) bool) (pods []types.UID) {
	for key, waiting := range p.waiting {
		if !ready(key) {
			continue
		}
		for pod := range waiting {
			pods = append(pods, pod)
		}
		delete(p.waiting, key)
	}
	return pods
}
