package agent

import (
	"k8s.io/apimachinery/pkg/types"
)

// Ending says whether a pod of this name, other than the one with the UID now, still has something here. Anybody may ask.
// Hands.Gone is called when that may have changed to no.
func (s *Supervisor) Ending(name types.NamespacedName, now types.UID) bool {
	here := s.here.Load()
	if here == nil {
		return false
	}
	for _, uid := range (*here)[name] {
		if uid != now {
			return true
		}
	}
	return false
}

// tellHere shows others which pods have a worker.
func (s *Supervisor) tellHere() {
	here := make(map[types.NamespacedName][]types.UID, len(s.workers))
	for uid, e := range s.workers {
		name := types.NamespacedName{Namespace: e.order.Pod.Namespace, Name: e.order.Pod.Name}
		here[name] = append(here[name], uid)
	}
	s.here.Store(&here)
}
