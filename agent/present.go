package agent

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Ending reports whether a pod of this name with another UID than now is still on the node. It also reports true before
// the runtime has listed its pods, when this is unknown. Backends.Gone is called when the result may have become false.
// Any goroutine may call it.
func (s *Supervisor) Ending(name types.NamespacedName, now types.UID) bool {
	present := s.present.Load()
	return present == nil || slices.ContainsFunc((*present)[name], func(uid types.UID) bool { return uid != now })
}

// publishPresent publishes which pods have a worker or something in the runtime.
func (s *Supervisor) publishPresent() {
	if s.listed == nil {
		return
	}
	present := make(map[types.NamespacedName][]types.UID, len(s.workers))
	for uid, e := range s.workers {
		name := types.NamespacedName{Namespace: e.source.Namespace, Name: e.source.Name}
		present[name] = append(present[name], uid)
	}
	for uid, pod := range s.listed {
		if s.workers[uid] == nil {
			name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
			present[name] = append(present[name], uid)
		}
	}
	if before := s.present.Swap(&present); before == nil || someLeft(*before, present) {
		s.cfg.Gone()
	}
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

// nameBusy reports whether an earlier static pod of the same full name has not ended yet. Pods of the API need not
// wait: the API server keeps their names apart.
func (s *Supervisor) nameBusy(pod *corev1.Pod) bool {
	for _, e := range s.workers {
		if p := e.source; p.Name == pod.Name && p.Namespace == pod.Namespace && p.UID != pod.UID {
			return true
		}
	}
	return false
}
