package devices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nodelet/nodelet/devices/checkpoint"
)

// Admit gives a pod the devices that its containers ask for, or says why it cannot have them; then it has none. What a pod has
// already it keeps, without a call to the plugin. spent tells of which pods the devices may be taken.
func (d *Devices) Admit(ctx context.Context, pod *corev1.Pod, spent func(types.UID) bool) error {
	if !d.asks(pod) {
		return nil
	}
	d.allocating.Lock()
	defer d.allocating.Unlock()
	d.free(spent)
	return d.allocate(ctx, pod)
}

// Release takes back what a pod has that is gone.
func (d *Devices) Release(pod types.UID) {
	d.mu.Lock()
	_, has := d.given[pod]
	delete(d.given, pod)
	d.mu.Unlock()
	if has {
		d.keep()
	}
}

func (d *Devices) free(spent func(types.UID) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for pod := range d.given {
		if spent(pod) {
			delete(d.given, pod)
		}
	}
}

// asks: a container of the pod asks for devices of a plugin.
func (d *Devices) asks(pod *corev1.Pod) bool {
	in := func(c corev1.Container) bool { return len(d.wanted(&c)) > 0 }
	return slices.ContainsFunc(pod.Spec.Containers, in) || slices.ContainsFunc(pod.Spec.InitContainers, in)
}

// wanted are the resources of plugins that a container asks for, sorted. Extended resources that no plugin has offered are the
// cluster's affair.
func (d *Devices) wanted(c *corev1.Container) (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, q := range c.Resources.Limits {
		if q.Sign() > 0 && d.known(string(name)) {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

// Known tells whether a resource is that of a plugin: its devices are counted here, one by one, and nowhere else.
func (d *Devices) Known(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known(name)
}

// known: a plugin offers the resource, or has given some of it out. mu is held.
func (d *Devices) known(name string) bool {
	if d.resources[name] != nil {
		return true
	}
	for _, pod := range d.given {
		for _, of := range pod {
			if of[name] != nil {
				return true
			}
		}
	}
	return false
}

// allocate gives a pod what it lacks, all of it or nothing. allocating is held.
func (d *Devices) allocate(ctx context.Context, pod *corev1.Pod) error {
	d.mu.Lock()
	before := containers{}
	for name, of := range d.given[pod.UID] {
		before[name] = maps.Clone(of)
	}
	d.mu.Unlock()
	err := d.allocateAll(ctx, pod)
	if err == nil {
		err = d.save()
	}
	if err != nil {
		d.mu.Lock()
		d.given[pod.UID] = before
		if len(before) == 0 {
			delete(d.given, pod.UID)
		}
		d.mu.Unlock()
	}
	return err
}

// set is a number of devices.
type set map[string]bool

// allocateAll goes through the containers in the order in which they run. What an init container has is free for those after
// it, unless it is a sidecar.
func (d *Devices) allocateAll(ctx context.Context, pod *corev1.Pod) error {
	reusable := map[string]set{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if err := d.allocateContainer(ctx, pod.UID, c, reusable, !sidecar(c)); err != nil {
			return err
		}
	}
	for i := range pod.Spec.Containers {
		if err := d.allocateContainer(ctx, pod.UID, &pod.Spec.Containers[i], reusable, false); err != nil {
			return err
		}
	}
	return nil
}

// sidecar tells an init container that runs on beside the others.
func sidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// allocateContainer gives a container its devices; those of one that passes them on become reusable, those of any other cease
// to be.
func (d *Devices) allocateContainer(ctx context.Context, pod types.UID, c *corev1.Container, reusable map[string]set, passesOn bool) error {
	for _, name := range d.wanted(c) {
		q := c.Resources.Limits[corev1.ResourceName(name)]
		ids, err := d.allocateResource(ctx, pod, c.Name, name, int(q.Value()), reusable[name])
		if err != nil {
			return err
		}
		if reusable[name] == nil {
			reusable[name] = set{}
		}
		for _, id := range ids {
			if passesOn {
				reusable[name][id] = true
			} else {
				delete(reusable[name], id)
			}
		}
	}
	return nil
}

// allocateResource gives a container n devices of one resource, or tells which it has already.
func (d *Devices) allocateResource(ctx context.Context, pod types.UID, container, name string, n int, reusable set) ([]string, error) {
	d.mu.Lock()
	has := d.given[pod][container][name]
	d.mu.Unlock()
	var ids []string
	if has != nil {
		if ids = has.all(); len(ids) != n {
			return nil, fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d", pod, container, name, len(ids), n)
		}
		if has.answer != nil {
			return ids, nil
		}
	}
	if has == nil {
		var err error
		if ids, err = d.choose(ctx, name, n, reusable); err != nil {
			return nil, err
		}
	}
	answer, err := d.askFor(ctx, name, ids)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.insert(pod, container, name, &allocation{ids: d.byNUMA(name, ids), answer: answer})
	return ids, nil
}

// byNUMA sorts devices by what they are near to. mu is held.
func (d *Devices) byNUMA(name string, ids []string) checkpoint.DevicesPerNUMA {
	sorted := checkpoint.DevicesPerNUMA{}
	for _, id := range ids {
		nodes := []int64{checkpoint.WithoutNUMA}
		if r := d.resources[name]; r != nil && len(r.devices[id].numa) > 0 {
			nodes = r.devices[id].numa
		}
		for _, node := range nodes {
			sorted[node] = append(sorted[node], id)
		}
	}
	return sorted
}

// choose finds n healthy devices: those that an earlier container of the pod passes on, then those that the plugin prefers,
// then any.
func (d *Devices) choose(ctx context.Context, name string, n int, reusable set) ([]string, error) {
	d.mu.Lock()
	chosen, free, err := d.candidates(name, n, reusable)
	r := d.resources[name]
	d.mu.Unlock()
	if err != nil || len(chosen) == n {
		return chosen, err
	}
	preferred, err := d.preferred(ctx, r, chosen, free, n)
	if err != nil {
		return nil, err
	}
	for _, id := range append(preferred, free...) {
		if len(chosen) < n && slices.Contains(free, id) && !slices.Contains(chosen, id) {
			chosen = append(chosen, id)
		}
	}
	return chosen, nil
}

// candidates are the devices that a container has for sure, and the free ones among which the rest is chosen. mu is held.
func (d *Devices) candidates(name string, n int, reusable set) (chosen, free []string, err error) {
	r := d.resources[name]
	if r == nil {
		return nil, nil, fmt.Errorf("cannot allocate unregistered device %s", name)
	}
	healthy := r.healthy()
	if len(healthy) == 0 {
		return nil, nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", name)
	}
	taken := d.taken(name)
	for _, id := range healthy {
		switch {
		case reusable[id] && len(chosen) < n:
			chosen = append(chosen, id)
		case !taken[id]:
			free = append(free, id)
		}
	}
	if needed := n - len(chosen); len(free) < needed {
		return nil, nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, needed, len(free))
	}
	return chosen, free, nil
}

// taken are the devices of a resource that are given out. mu is held.
func (d *Devices) taken(name string) set {
	taken := set{}
	for _, pod := range d.given {
		for _, of := range pod {
			if a := of[name]; a != nil {
				for _, id := range a.all() {
					taken[id] = true
				}
			}
		}
	}
	return taken
}

// preferred asks the plugin which devices it would take, if it has an opinion.
func (d *Devices) preferred(ctx context.Context, r *resource, chosen, free []string, n int) ([]string, error) {
	p, options := d.pluginOf(r)
	if !options.GetGetPreferredAllocationAvailable() {
		return nil, nil
	}
	if p == nil {
		return nil, errStopped
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer, err := p.client.GetPreferredAllocation(ctx, &api.PreferredAllocationRequest{
		ContainerRequests: []*api.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: append(slices.Clone(chosen), free...),
			MustIncludeDeviceIDs: chosen, AllocationSize: int32(n)}}})
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
	}
	if len(answer.ContainerResponses) == 0 {
		return nil, nil
	}
	return answer.ContainerResponses[0].DeviceIDs, nil
}

// errStopped is what a pod hears whose plugin has gone while it was asked.
var errStopped = errors.New("the device plugin has gone; is its pod running?")

// pluginOf is the plugin of a resource, and what it has said of itself; nil for what is not there.
func (d *Devices) pluginOf(r *resource) (*plugin, *api.DevicePluginOptions) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r == nil {
		return nil, nil
	}
	return r.plugin, r.options
}

// askFor has the plugin make devices ready for a container.
func (d *Devices) askFor(ctx context.Context, name string, ids []string) (*api.ContainerAllocateResponse, error) {
	d.mu.Lock()
	r := d.resources[name]
	d.mu.Unlock()
	p, _ := d.pluginOf(r)
	if p == nil {
		return nil, errStopped
	}
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	answer, err := p.client.Allocate(ctx, &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	if len(answer.ContainerResponses) == 0 {
		return nil, fmt.Errorf("no containers return in allocation response %v", answer)
	}
	return answer.ContainerResponses[0], nil
}
