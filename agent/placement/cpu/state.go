package cpu

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
)

// State says who has which CPUs. The zero value is a state that no policy has initialized.
type State struct {
	// Shared is the shared pool.
	Shared cpuset.CPUSet
	// Containers are the CPUs of containers that do not use the shared pool, by pod and name.
	Containers map[types.UID]map[string]cpuset.CPUSet
	// Pods are the CPUs of pods that have them as a whole and divide them among their containers.
	Pods map[types.UID]cpuset.CPUSet
}

// Clone returns a copy that can be changed.
func (s State) Clone() State {
	out := State{
		Shared:     s.Shared,
		Containers: make(map[types.UID]map[string]cpuset.CPUSet, len(s.Containers)),
		Pods:       make(map[types.UID]cpuset.CPUSet, len(s.Pods)),
	}
	for uid, of := range s.Containers {
		out.Containers[uid] = maps.Clone(of)
	}
	maps.Copy(out.Pods, s.Pods)
	return out
}

// Of returns the CPUs that a container may use. own reports whether they are not the shared pool.
func (s *State) Of(pod types.UID, container string) (cpus cpuset.CPUSet, own bool) {
	if set, ok := s.Containers[pod][container]; ok {
		return set, true
	}
	return s.Shared, false
}

// Exclusive returns all CPUs that are not in the shared pool.
func (s *State) Exclusive() cpuset.CPUSet {
	var all []cpuset.CPUSet
	for _, of := range s.Containers {
		all = slices.AppendSeq(all, maps.Values(of))
	}
	return cpuset.New().Union(all...)
}

func (s *State) set(pod types.UID, container string, cpus cpuset.CPUSet) {
	if s.Containers[pod] == nil {
		s.Containers[pod] = map[string]cpuset.CPUSet{}
	}
	s.Containers[pod][container] = cpus
}

// Release gives back everything that a pod has.
func (s *State) Release(pod types.UID) {
	back := slices.AppendSeq([]cpuset.CPUSet{s.Pods[pod]}, maps.Values(s.Containers[pod]))
	s.Shared = s.Shared.Union(back...)
	delete(s.Pods, pod)
	delete(s.Containers, pod)
}
