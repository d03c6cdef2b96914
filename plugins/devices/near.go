package devices

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Near reports whether the devices of a container should come from a NUMA node, so that they are close to its CPUs and
// memory. A nil Near has no preference.
type Near = func(container string, node int64) bool

// View are the devices of one resource and their NUMA nodes, by ID.
type View struct {
	All map[string][]int64
	// Free are the devices that a pod can get.
	Free []string
}

// Views are the devices of resources.
type Views = map[string]View

// Views returns the devices of each resource that a pod which is about to be admitted requests of plugins.
func (d *Devices) Views(pod *corev1.Pod) Views {
	d.mu.Lock()
	defer d.mu.Unlock()
	wanted := d.wantedBy(pod)
	if len(wanted) == 0 {
		return nil
	}
	views := Views{}
	for name, r := range d.resources {
		if !wanted[name] {
			continue
		}
		v := View{All: make(map[string][]int64, len(r.devices))}
		for id, dev := range r.devices {
			v.All[id] = dev.numa
		}
		has, lacks := d.has(pod, name)
		v.Free = slices.Sorted(maps.Keys(has))
		if free, err := d.unused(name); err == nil && lacks {
			assumed := d.assumed(pod, name)
			v.Free = append(v.Free, slices.DeleteFunc(free, func(id string) bool { return assumed[id] })...)
		}
		views[name] = v
	}
	return views
}

// has returns the devices of a resource that a pod has already, and whether it lacks others. An earlier run of the
// agent may have ended after it allocated them. mu is held.
func (v *inventory) has(pod *corev1.Pod, name string) (ids set, lacks bool) {
	ids = set{}
	for _, c := range podutil.ContainersWithResources(&pod.Spec) {
		a := v.given[slot{pod.UID, c.Name, name}]
		if a == nil {
			lacks = lacks || wants(c, name) > 0
			continue
		}
		for _, id := range a.all() {
			ids[id] = true
		}
	}
	return ids, lacks
}

// assumed returns the devices that other pods will get as long as their plugins prefer no others of the same NUMA
// nodes. mu is held.
func (v *inventory) assumed(pod *corev1.Pod, name string) set {
	all := set{}
	for uid, r := range v.reserved {
		if uid != pod.UID {
			maps.Copy(all, r.assumed[name])
		}
	}
	return all
}

// assume selects devices for the containers of a pod whose plugins have not chosen yet, so that pods which are admitted
// meanwhile do not count on them. mu is held.
func (v *inventory) assume(r *reservation) {
	r.assumed = map[string]set{}
	if r.near == nil {
		return
	}
	passed := map[string]int{}
	for role, c := range podutil.ContainersWithResources(&r.pod.Spec) {
		for _, name := range v.wanted(r.pod, c) {
			fresh := max(0, wants(c, name)-passed[name])
			passOn(passed, role, name, wants(c, name))
			free, err := v.unused(name)
			if err != nil || v.given[slot{r.pod.UID, c.Name, name}] != nil {
				continue
			}
			others := v.assumed(r.pod, name)
			free = slices.DeleteFunc(free, func(id string) bool { return others[id] || r.assumed[name][id] })
			v.sortNear(r.near, c.Name, name, free)
			if r.assumed[name] == nil {
				r.assumed[name] = set{}
			}
			for _, id := range free[:min(len(free), fresh)] {
				r.assumed[name][id] = true
			}
		}
	}
}

// assumeOthers makes a pod for which devices were chosen, and then those that were assumed to get these, expect others.
// mu is held.
func (v *inventory) assumeOthers(chooser *reservation, name string, chosen []string) {
	v.assume(chooser)
	for _, r := range v.reserved {
		if slices.ContainsFunc(chosen, func(id string) bool { return r.assumed[name][id] }) {
			v.assume(r)
		}
	}
}

// sortNear sorts devices: first those of the NUMA nodes that the container prefers, then those of others, then those
// without any. It returns how many the first are. mu is held.
func (v *inventory) sortNear(near Near, container, name string, ids []string) (aligned int) {
	if near == nil {
		return 0
	}
	away := func(id string) int {
		nodes := v.resources[name].devices[id].numa
		switch {
		case slices.ContainsFunc(nodes, func(node int64) bool { return near(container, node) }):
			return 0
		case len(nodes) > 0:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(ids, func(a, b string) int { return cmp.Compare(away(a), away(b)) })
	for aligned < len(ids) && away(ids[aligned]) == 0 {
		aligned++
	}
	return aligned
}
