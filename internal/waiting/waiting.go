// Package waiting records which pods wait for something, so that they can be woken when it is there.
//
// It owns a map in memory and never wakes a pod itself: csi, plugins and kube/storage do that with what they take from
// it. After a crash the pods wait again when their steps run again.
package waiting

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// waitLimit is how long a pod counts as waiting. One that still waits is added again about once a minute, when its step
// is repeated; one that is gone is not.
const waitLimit = 10 * time.Minute

// Pods are the pods that wait, by what they wait for: the name of a driver, a resource, a volume. The zero value is
// ready. It is not safe for concurrent use.
type Pods[K comparable] struct {
	waiting map[K]map[types.UID]time.Time // when each was added last
	// looked is when those were forgotten last that are gone.
	looked time.Time
}

// Add adds a pod to those that wait for key. The caller looks whether it has to wait with the same lock held, or after
// Add: what comes between a look and Add does not wake the pod.
func (p *Pods[K]) Add(key K, pod types.UID) {
	now := time.Now()
	p.forgetGone(now)
	if p.waiting == nil {
		p.waiting = map[K]map[types.UID]time.Time{}
	}
	if p.waiting[key] == nil {
		p.waiting[key] = map[types.UID]time.Time{}
	}
	p.waiting[key][pod] = now
}

// forgetGone forgets now and then the pods that have not been added again.
func (p *Pods[K]) forgetGone(now time.Time) {
	if now.Sub(p.looked) < waitLimit {
		return
	}
	p.looked = now
	maps.DeleteFunc(p.waiting, func(_ K, pods map[types.UID]time.Time) bool {
		maps.DeleteFunc(pods, func(_ types.UID, added time.Time) bool { return now.Sub(added) >= waitLimit })
		return len(pods) == 0
	})
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
