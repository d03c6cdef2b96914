package devices

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/plugins/devices/checkpoint"
)

// inventory is the state of the node's devices and their allocations. It calls no plugin and reads no file. Devices.mu
// guards it.
type inventory struct {
	resources map[string]*resource
	// withdrawn are resources whose plugins have been gone for longer than the grace period.
	withdrawn map[string]bool
	given     map[slot]*allocation
	// unsaved: something was released since given was last written to the checkpoint.
	unsaved bool
	// reserved are the pods whose plugins are being called, or will be.
	reserved map[types.UID]*reservation
	// turns are the reservations whose plugins are not done, in the order in which they were made.
	turns []*reservation
	// changed is closed and replaced when a plugin has sent its devices.
	changed chan struct{}
}

// slot is what a container can have of a resource.
type slot struct {
	pod                 types.UID
	container, resource string
}

func (s slot) compare(o slot) int {
	return cmp.Or(cmp.Compare(s.pod, o.pod), cmp.Compare(s.container, o.container), cmp.Compare(s.resource, o.resource))
}

// set is a set of device IDs.
type set map[string]bool

// reservation is what is kept for a pod while its plugins are being called.
type reservation struct {
	pod *corev1.Pod
	// near says which NUMA nodes the devices should come from.
	near Near
	// need is the number of free devices, by resource, that no other pod may have. assumed are the devices that these
	// will probably be.
	need    map[string]int
	assumed map[string]set
	// asks are the resources that the pod requests. calling: their plugins are being called. ended is closed when that is
	// done, or will not be.
	asks    set
	calling bool
	ended   chan struct{}
}

// known reports whether a plugin offers the resource, or a container has some of it. mu is held.
func (v *inventory) known(name string) bool {
	if v.resources[name] != nil {
		return true
	}
	for s := range v.given {
		if s.resource == name {
			return true
		}
	}
	return false
}

// wanted returns the resources of plugins that a container requests, sorted. It leaves out extended resources that no
// plugin has offered, and those that the pod has by a ResourceClaim. mu is held.
func (v *inventory) wanted(pod *corev1.Pod, c *corev1.Container) (names []string) {
	for name, q := range c.Resources.Limits {
		if q.Sign() > 0 && v.known(string(name)) && !claimed(pod, c, string(name)) {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

// wantedBy returns the resources of plugins that the containers of a pod request. mu is held.
func (v *inventory) wantedBy(pod *corev1.Pod) set {
	names := set{}
	for _, c := range podutil.ContainersWithResources(&pod.Spec) {
		for _, name := range v.wanted(pod, c) {
			names[name] = true
		}
	}
	return names
}

// reserve reserves as many devices as a pod lacks; it returns nil if it lacks none. mu is held.
func (v *inventory) reserve(pod *corev1.Pod, near Near) (*reservation, error) {
	need, lacks, err := v.need(pod)
	if err != nil || !lacks {
		return nil, err
	}
	r := &reservation{pod: pod, near: near, need: need, asks: v.wantedBy(pod), ended: make(chan struct{})}
	v.assume(r)
	v.giveBack(pod.UID)
	v.reserved[pod.UID] = r
	v.turns = append(v.turns, r)
	return r, nil
}

// need returns how many devices of each resource have to be found for a pod, and whether it lacks any. An error says
// why the pod cannot have them. mu is held.
func (v *inventory) need(pod *corev1.Pod) (need map[string]int, lacks bool, err error) {
	need = map[string]int{}
	passed := map[string]int{} // devices of init containers, free for the next
	for role, c := range podutil.ContainersWithResources(&pod.Spec) {
		for _, name := range v.wanted(pod, c) {
			n, has := wants(c, name), v.given[slot{pod.UID, c.Name, name}]
			switch {
			case has == nil:
				fresh := max(0, n-passed[name])
				if err := v.enough(pod.UID, name, need[name], fresh); err != nil {
					return nil, false, err
				}
				need[name] += fresh
			case len(has.all()) != n:
				return nil, false, fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d", pod.UID, c.Name,
					name, len(has.all()), n)
			}
			lacks = lacks || has == nil || has.answer == nil
			passOn(passed, role, name, n)
		}
	}
	return need, lacks, nil
}

// enough returns an error unless more devices are free in addition to those reserved for this pod or for others. mu is
// held.
func (v *inventory) enough(pod types.UID, name string, already, more int) error {
	free, err := v.unused(name)
	if err != nil {
		return err
	}
	if available := len(free) - v.othersReserve(pod, name) - already; more > 0 && available < more {
		return fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, more,
			max(0, available))
	}
	return nil
}

// othersReserve returns the number of devices that are reserved for other pods. mu is held.
func (v *inventory) othersReserve(pod types.UID, name string) (sum int) {
	for other, r := range v.reserved {
		if other != pod {
			sum += r.need[name]
		}
	}
	return sum
}

// unused returns the healthy devices of a resource that are not allocated, sorted. mu is held.
func (v *inventory) unused(name string) ([]string, error) {
	r := v.resources[name]
	if r == nil {
		return nil, fmt.Errorf("cannot allocate unregistered device %s", name)
	}
	healthy := r.healthy()
	if len(healthy) == 0 {
		return nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", name)
	}
	taken := v.taken(name)
	return slices.DeleteFunc(healthy, func(id string) bool { return taken[id] }), nil
}

// candidates returns the devices that a container takes over from an earlier one, and the free ones among which the
// others are chosen. mu is held.
func (v *inventory) candidates(pod types.UID, name string, n int, reusable set) (chosen, free []string, err error) {
	if free, err = v.unused(name); err != nil {
		return nil, nil, err
	}
	for _, id := range v.resources[name].healthy() {
		if reusable[id] && len(chosen) < n {
			chosen = append(chosen, id)
		}
	}
	return chosen, free, v.enough(pod, name, 0, n-len(chosen))
}

// taken returns the allocated devices of a resource. mu is held.
func (v *inventory) taken(name string) set {
	taken := set{}
	for s, a := range v.given {
		if s.resource != name {
			continue
		}
		for _, id := range a.all() {
			taken[id] = true
		}
	}
	return taken
}

// byNUMA groups devices by NUMA node. mu is held.
func (v *inventory) byNUMA(name string, ids []string) checkpoint.DevicesPerNUMA {
	sorted := checkpoint.DevicesPerNUMA{}
	for _, id := range ids {
		nodes := []int64{checkpoint.WithoutNUMA}
		if r := v.resources[name]; r != nil && len(r.devices[id].numa) > 0 {
			nodes = r.devices[id].numa
		}
		for _, node := range nodes {
			sorted[node] = append(sorted[node], id)
		}
	}
	return sorted
}

// insert records what a container has of a resource, if the pod still exists. mu is held.
func (v *inventory) insert(r *reservation, container, resource string, a *allocation) error {
	if v.reserved[r.pod.UID] != r {
		return errTakenBack
	}
	v.given[slot{r.pod.UID, container, resource}] = a
	return nil
}

// slotsOf returns what the containers of a pod have, sorted. mu is held.
func (v *inventory) slotsOf(pod types.UID) []slot {
	return v.slots(func(s slot) bool { return s.pod == pod })
}

// slots returns the chosen slots with an allocation, sorted. mu is held.
func (v *inventory) slots(chosen func(slot) bool) (all []slot) {
	for s := range v.given {
		if chosen(s) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, slot.compare)
	return all
}

// free releases the devices of ended pods. mu is held.
func (v *inventory) free(ended func(types.UID) bool) {
	before := len(v.given)
	maps.DeleteFunc(v.given, func(s slot, _ *allocation) bool { return ended(s.pod) })
	v.unsaved = v.unsaved || len(v.given) < before
}

// claimed reports whether the pod has a ResourceClaim for what its container requests of a resource.
func claimed(pod *corev1.Pod, c *corev1.Container, name string) bool {
	s := pod.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
		return m.ContainerName == c.Name && m.ResourceName == name
	})
}

// wants returns the number of devices of a resource that a container requests.
func wants(c *corev1.Container, name string) int {
	return int(podutil.Amount(c.Resources.Limits, corev1.ResourceName(name)))
}

// passOn updates how many devices of a resource later containers of the pod may use, after a container that has n: an
// init container has terminated when the next starts.
func passOn(passed map[string]int, role podutil.Role, name string, n int) {
	if role == podutil.RoleInit {
		passed[name] = max(passed[name], n)
	} else {
		passed[name] = max(0, passed[name]-n)
	}
}

// nearest returns the devices that a container gets in any case, and those among which the plugin may choose the
// others: those of the preferred NUMA nodes if they are more than enough, otherwise all free ones. mu is held.
func (v *inventory) nearest(r *reservation, c *corev1.Container, name string,
	reusable set) (chosen, free []string, err error) {
	n := wants(c, name)
	if chosen, free, err = v.candidates(r.pod.UID, name, n, reusable); err != nil {
		return nil, nil, err
	}
	switch aligned := v.sortNear(r.near, c.Name, name, free); {
	case aligned > n-len(chosen):
		free = free[:aligned]
	default:
		chosen, free = append(chosen, free[:aligned]...), free[aligned:]
	}
	return chosen, free, nil
}
