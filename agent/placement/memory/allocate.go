package memory

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/nodelet/nodelet/agent/placement/numa"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Reuse is the memory that the init containers of a pod pass on, by the nodes that it comes from.
type Reuse map[numa.Mask]request

// Hints returns from which NUMA nodes a container can get its memory; nil if the policy does not serve it.
func (p *Policy) Hints(s *State, pod *corev1.Pod, c *corev1.Container, reuse Reuse) numa.Hints {
	if !p.managed(pod) {
		return nil
	}
	r, err := p.of(pod, c)
	if err != nil || len(r) == 0 {
		return nil
	}
	return forEach(r, p.hints(s.Machine, r, reuse))
}

// PodHints returns from which NUMA nodes a pod can get the memory of all its containers.
func (p *Policy) PodHints(s *State, pod *corev1.Pod) numa.Hints {
	if !p.managed(pod) {
		return nil
	}
	r, err := p.ofPod(pod)
	if err != nil || len(r) == 0 {
		return nil
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) && p.leavesShared(pod, r) != nil {
		return forEach(r, []numa.Hint{})
	}
	return forEach(r, p.hints(s.Machine, r, nil))
}

// forEach returns the same hints for each kind of memory; nil if there are none, which expresses no preference.
func forEach(r request, hints []numa.Hint) numa.Hints {
	if hints == nil {
		return nil
	}
	all := numa.Hints{}
	for kind := range r {
		all[string(kind)] = hints
	}
	return all
}

// hints returns the sets of NUMA nodes that can serve a request; nil if there are none. A set is preferred if no
// smaller one has as much allocatable memory, free or not.
func (p *Policy) hints(m NUMANodeMap, r request, reuse Reuse) []numa.Hint {
	could := func(mask numa.Mask) bool {
		return fits(r, func(kind corev1.ResourceName) uint64 { return m.allocatable(mask, kind) })
	}
	hints, _ := numa.Find(m.ids(), could, func(mask numa.Mask) bool {
		enough := fits(r, func(kind corev1.ResourceName) uint64 { return m.free(mask, kind) + reuse[mask][kind] })
		return enough && could(mask) && !m.conflicts(mask) && !m.grouped(mask)
	})
	if len(hints) == 0 {
		return nil
	}
	return hints
}

// fits reports whether there is enough of each requested kind.
func fits(r request, has func(corev1.ResourceName) uint64) bool {
	for kind, n := range r {
		if has(kind) < n {
			return false
		}
	}
	return true
}

// grouped reports whether the set is one node that serves containers only together with others.
func (m NUMANodeMap) grouped(mask numa.Mask) bool {
	return mask.Count() == 1 && len(m[mask.Nodes()[0]].Cells) > 1
}

// conflicts reports whether one of several nodes already serves containers alone or in another group.
func (m NUMANodeMap) conflicts(mask numa.Mask) bool {
	return mask.Count() > 1 && slices.ContainsFunc(mask.Nodes(), func(id int) bool {
		return m[id].NumberOfAssignments > 0 && (len(m[id].Cells) == 1 || numa.MaskOf(m[id].Cells...) != mask)
	})
}

// best returns the best of the hints: a preferred one, then the one with the fewest nodes.
func best(hints []numa.Hint) numa.Hint {
	return slices.MinFunc(hints, func(a, b numa.Hint) int {
		switch {
		case a.Preferred && !b.Preferred:
			return -1
		case b.Preferred && !a.Preferred:
			return 1
		}
		return numa.Narrower(a.Nodes, b.Nodes)
	})
}

// place returns the nodes that serve a request: those of the merged hint, if there are any, and more if these have too
// little.
func (p *Policy) place(m NUMANodeMap, r request, merged numa.Hint, reuse Reuse) (numa.Mask, error) {
	hints := p.hints(m, r, reuse)
	to := merged
	if to.Nodes == 0 {
		if len(hints) == 0 {
			return 0, errors.New("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory " +
				"is available")
		}
		if to = best(hints); !to.Preferred && merged.Preferred {
			return 0, errors.New("[memorymanager] failed to find the default preferred hint")
		}
	}
	if !fits(r, func(kind corev1.ResourceName) uint64 { return m.free(to.Nodes, kind) }) {
		wider := slices.DeleteFunc(hints, func(h numa.Hint) bool { return h.Nodes&to.Nodes != to.Nodes })
		if len(wider) == 0 {
			return 0, errors.New("[memorymanager] failed to find NUMA nodes to extend the current topology hint")
		}
		preferred := to.Preferred
		if to = best(wider); !to.Preferred && preferred {
			return 0, errors.New("[memorymanager] failed to find the extended preferred hint")
		}
	}
	if m.conflicts(to.Nodes) {
		return 0, errors.New("[memorymanager] preferred hint violates NUMA node allocation")
	}
	return to.Nodes, nil
}

// Asks reports whether the policy gives memory to a container.
func (p *Policy) Asks(pod *corev1.Pod, c *corev1.Container) bool {
	r, err := p.of(pod, c)
	return p.managed(pod) && (err != nil || len(r) > 0)
}

// Allocate gives a container its memory. merged is the hint that all resources of the container have agreed on. reuse
// is the memory that earlier init containers of the pod pass on; Allocate keeps it up to date.
func (p *Policy) Allocate(s *State, pod *corev1.Pod, role podutil.Role, c *corev1.Container, merged numa.Hint,
	reuse Reuse) error {
	if !p.Asks(pod, c) {
		return nil
	}
	r, err := p.of(pod, c)
	if err != nil {
		return err
	}
	nodes, err := p.place(s.Machine, r, merged, reuse)
	if err != nil {
		return err
	}
	blocks := blocks(r, nodes)
	for _, b := range blocks {
		s.Machine.assign(b, b.Size-min(b.Size, reuse[nodes][b.Type]))
	}
	reuse.passOn(role, nodes, r)
	s.set(pod, c.Name, blocks)
	s.shrinkInits(pod, c.Name, blocks)
	return nil
}

func blocks(r request, nodes numa.Mask) []Block {
	var all []Block
	for _, kind := range r.kinds() {
		all = append(all, Block{NUMAAffinity: nodes.Nodes(), Type: kind, Size: r[kind]})
	}
	return all
}

func (s *State) set(pod *corev1.Pod, container string, blocks []Block) {
	uid := string(pod.UID)
	if s.Containers[uid] == nil {
		s.Containers[uid] = map[string][]Block{}
	}
	s.Containers[uid][container] = blocks
}

// passOn updates the memory that later containers of the pod may use: an init container ends before they start.
func (u Reuse) passOn(role podutil.Role, nodes numa.Mask, r request) {
	if u[nodes] == nil {
		u[nodes] = request{}
	}
	for kind, n := range r {
		if role == podutil.RoleInit {
			u[nodes][kind] = max(u[nodes][kind], n)
		} else {
			u[nodes][kind] -= min(u[nodes][kind], n)
		}
	}
}

// shrinkInits takes the memory that a container reuses off the blocks of the init containers before it, so that the sum
// of all blocks is what the pod has.
func (s *State) shrinkInits(pod *corev1.Pod, container string, by []Block) {
	for _, b := range by {
		rest := b.Size
		for role, c := range podutil.Containers(&pod.Spec) {
			if c.Name == container || rest == 0 {
				break
			}
			if role != podutil.RoleInit {
				continue
			}
			has := s.Containers[string(pod.UID)][c.Name]
			for i := range has {
				if has[i].Type == b.Type && slices.Equal(has[i].NUMAAffinity, b.NUMAAffinity) {
					part := min(rest, has[i].Size)
					has[i].Size -= part
					rest -= part
				}
			}
		}
	}
}

// AllocatePod gives a pod with resources of its own memory as a whole, and divides it among its containers.
func (p *Policy) AllocatePod(s *State, pod *corev1.Pod, merged numa.Hint) error {
	if podutil.QOS(pod) != corev1.PodQOSGuaranteed {
		return nil
	}
	total, err := p.ofPod(pod)
	if err != nil {
		return nil //nolint:nilerr // the kubelet does not serve such a pod
	}
	if err := p.leavesShared(pod, total); err != nil {
		return err
	}
	nodes, err := p.place(s.Machine, total, merged, nil)
	if err != nil {
		return err
	}
	parts, err := p.divide(pod, total)
	if err != nil {
		return err
	}
	whole := blocks(total, nodes)
	for _, b := range whole {
		s.Machine.assign(b, b.Size)
	}
	s.Pods[string(pod.UID)] = whole
	for name, part := range parts {
		s.set(pod, name, blocks(part, nodes))
	}
	return nil
}

// divide divides the memory of a pod. Containers without memory of their own share what is left: an init container what
// sidecars before it leave, the others what all sidecars and app containers leave.
func (p *Policy) divide(pod *corev1.Pod, total request) (map[string]request, error) {
	parts := map[string]request{}
	var sharing []string
	left := request{}
	maps.Copy(left, total)
	for role, c := range podutil.ContainersWithResources(&pod.Spec) {
		r, err := p.of(pod, c)
		if err != nil {
			return nil, err
		}
		switch {
		case len(r) == 0 && role == podutil.RoleInit:
			parts[c.Name] = left.positive()
			continue
		case len(r) == 0:
			sharing = append(sharing, c.Name)
			continue
		}
		parts[c.Name] = r.positive()
		if role != podutil.RoleInit {
			for kind, n := range r {
				left[kind] -= min(n, left[kind])
			}
		}
	}
	for _, name := range sharing {
		parts[name] = left.positive()
	}
	return parts, nil
}

// positive returns a copy without requests of 0.
func (r request) positive() request {
	out := request{}
	for kind, n := range r {
		if n > 0 {
			out[kind] = n
		}
	}
	return out
}

// leavesShared returns an error if the containers with memory of their own leave none to those that share.
func (p *Policy) leavesShared(pod *corev1.Pod, total request) error {
	running, sharing := request{}, false
	for role, c := range podutil.ContainersWithResources(&pod.Spec) {
		r, err := p.of(pod, c)
		if err != nil {
			return err
		}
		if role == podutil.RoleInit {
			if kind, full := running.exhausts(total); len(r) == 0 && full {
				return numa.EmptyPool(fmt.Sprintf(
					"pod rejected, pod has shared init containers but no %s available for them", kind))
			}
			continue
		}
		sharing = sharing || len(r) == 0
		for kind, n := range r {
			running[kind] += n
		}
	}
	if kind, full := running.exhausts(total); sharing && full {
		return numa.EmptyPool(fmt.Sprintf("pod rejected, sum of exclusive container %s requests equals pod budget, leaving "+
			"no memory for shared containers", kind))
	}
	return nil
}

// exhausts reports whether r takes all of a kind of memory, and which.
func (r request) exhausts(total request) (corev1.ResourceName, bool) {
	for _, kind := range total.kinds() {
		if r[kind] >= total[kind] {
			return kind, true
		}
	}
	return "", false
}
