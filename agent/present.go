package agent

import (
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
)

// presence shows other goroutines which pods, other than those of the API server, have something on the node.
type presence struct {
	// pods are those of table.present; nil before the runtime's first list.
	pods atomic.Pointer[map[types.NamespacedName][]types.UID]
	// changed is called when a pod has gone, and at the first list.
	changed func()
}

// set publishes the pods that are present now.
func (p *presence) set(now map[types.NamespacedName][]types.UID) {
	if before := p.pods.Swap(&now); before == nil || someLeft(*before, now) {
		p.changed()
	}
}

// Ending reports whether a pod of this name with another UID than now, and not known to come from the API server, is
// still on the node. It also reports true before the runtime has listed its pods, when this is unknown. Config.PodGone
// is called when the result may have become false. Any goroutine may call it.
func (s *Supervisor) Ending(name types.NamespacedName, now types.UID) bool {
	present := s.presence.pods.Load()
	return present == nil || slices.ContainsFunc((*present)[name], func(uid types.UID) bool { return uid != now })
}

// someLeft reports whether a pod that was present before is not present now.
func someLeft(before, now map[types.NamespacedName][]types.UID) bool {
	for name, uids := range before {
		if slices.ContainsFunc(uids, func(uid types.UID) bool { return !slices.Contains(now[name], uid) }) {
			return true
		}
	}
	return false
}
