package policy

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/nodelet/nodelet/agent/placement/numa"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Devices are the devices of device plugins, by resource.
type Devices map[string]Resource

// Resource are the devices of one resource.
type Resource struct {
	// All are the NUMA nodes of each device by its ID; empty for a device without any.
	All map[string]numa.Mask
	// Free are the devices that a pod can get.
	Free []string
}

// devices follows which devices the containers of a pod will get. Device plugins choose the very devices later, from
// the same NUMA nodes.
type devices struct {
	Devices
	// taken are those of containers, passed those that init containers pass on.
	taken, passed map[string]map[string]bool
}

func newDevices(d Devices) *devices {
	return &devices{Devices: d, taken: map[string]map[string]bool{}, passed: map[string]map[string]bool{}}
}

// aligned reports whether a device of the resource has a NUMA node.
func (r Resource) aligned() bool {
	for _, nodes := range r.All {
		if nodes != 0 {
			return true
		}
	}
	return false
}

// requested returns how many devices of each known resource a list of limits names.
func (d *devices) requested(limits corev1.ResourceList) map[string]int {
	out := map[string]int{}
	for name, q := range limits {
		if _, known := d.Devices[string(name)]; known && q.Sign() > 0 {
			out[string(name)] = int(podutil.Amount(limits, name))
		}
	}
	return out
}

// hints returns from which NUMA nodes a container can get its devices.
func (d *devices) hints(c *corev1.Container) numa.Hints {
	all := numa.Hints{}
	for name, n := range d.requested(c.Resources.Limits) {
		all[name] = d.Devices[name].hints(d.free(name), keys(d.passed[name]), n)
	}
	return all
}

// podHints returns from which NUMA nodes a pod can get the devices of all its containers.
func (d *devices) podHints(pod *corev1.Pod) numa.Hints {
	all := numa.Hints{}
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})
	for name, n := range d.requested(limits) {
		all[name] = d.Devices[name].hints(d.free(name), nil, n)
	}
	return all
}

// free returns the devices that no container has.
func (d *devices) free(name string) []string {
	return slices.DeleteFunc(slices.Clone(d.Devices[name].Free), func(id string) bool { return d.taken[name][id] })
}

func keys(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

// hints returns the sets of NUMA nodes with n free devices, counting those to reuse, all of which must be inside. It
// returns nil if no device has a NUMA node.
func (r Resource) hints(free, reuse []string, n int) []numa.Hint {
	if !r.aligned() {
		return nil
	}
	if len(free)+len(reuse) < n {
		return []numa.Hint{}
	}
	all, available := r.tally(maps.Keys(r.All)), r.tally(slices.Values(free))
	bound := r.tally(slices.Values(reuse))
	var nodes numa.Mask
	for of := range all {
		nodes |= of
	}
	must := bound.of(nodes)
	hints, _ := numa.Find(nodes.Nodes(), func(mask numa.Mask) bool { return all.of(mask) >= n },
		func(mask numa.Mask) bool { return bound.of(mask) == must && available.of(mask)+must >= n })
	return hints
}

// tally counts devices by the NUMA nodes that they belong to.
type tally map[numa.Mask]int

func (r Resource) tally(ids iter.Seq[string]) tally {
	t := tally{}
	for id := range ids {
		t[r.All[id]]++
	}
	return t
}

// of returns how many of the devices belong to one of the nodes.
func (t tally) of(mask numa.Mask) (n int) {
	for nodes, count := range t {
		if nodes&mask != 0 {
			n += count
		}
	}
	return n
}

// allocate takes the devices of a container, from the given NUMA nodes if possible.
func (d *devices) allocate(role podutil.Role, c *corev1.Container, near numa.Mask) error {
	wanted := d.requested(c.Resources.Limits)
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		n, r := wanted[name], d.Devices[name]
		chosen := keys(d.passed[name])
		chosen = chosen[:min(n, len(chosen))]
		free := d.free(name)
		if len(chosen)+len(free) < n {
			return fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name,
				n-len(chosen), len(free))
		}
		away := func(id string) int {
			switch {
			case r.All[id]&near != 0:
				return 0
			case r.All[id] != 0:
				return 1
			}
			return 2
		}
		slices.SortStableFunc(free, func(a, b string) int { return cmp.Compare(away(a), away(b)) })
		d.take(role, name, append(chosen, free[:n-len(chosen)]...))
	}
	return nil
}

func (d *devices) take(role podutil.Role, name string, ids []string) {
	if d.taken[name] == nil {
		d.taken[name], d.passed[name] = map[string]bool{}, map[string]bool{}
	}
	for _, id := range ids {
		d.taken[name][id] = true
		if role == podutil.RoleInit {
			d.passed[name][id] = true
		} else {
			delete(d.passed[name], id)
		}
	}
}
