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

	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/plugins/devices/checkpoint"
)

// Release takes back what a pod has that is gone.
func (d *Devices) Release(pod types.UID) {
	d.mu.Lock()
	_, has := d.given[pod]
	delete(d.given, pod)
	delete(d.reserved, pod)
	d.mu.Unlock()
	if has {
		d.keep()
	}
}

// free takes back what pods have that are spent. mu is held.
func (d *Devices) free(spent func(types.UID) bool) {
	for pod := range d.given {
		if spent(pod) {
			delete(d.given, pod)
		}
	}
}

// asks: a container of the pod asks for devices of a plugin. mu is held.
func (d *Devices) asks(pod *corev1.Pod) bool {
	for role, c := range podutil.Containers(&pod.Spec) {
		if role != podutil.RoleEphemeral && len(d.wanted(pod, c)) > 0 {
			return true
		}
	}
	return false
}

// wanted are the resources of plugins that a container asks for, sorted. Extended resources that no plugin has offered
// are the cluster's affair, and those for which the pod has a resource claim are given out by that. mu is held.
func (d *Devices) wanted(pod *corev1.Pod, c *corev1.Container) (names []string) {
	for name, q := range c.Resources.Limits {
		if q.Sign() > 0 && d.known(string(name)) && !claimed(pod, c, string(name)) {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

// claimed: the pod has a resource claim for what its container wants of a resource.
func claimed(pod *corev1.Pod, c *corev1.Container, name string) bool {
	s := pod.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
		return m.ContainerName == c.Name && m.ResourceName == name
	})
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

// errTakenBack is what is heard of a pod that is gone while plugins were asked.
var errTakenBack = errors.New("the pod's devices have been taken back; it is about to go")

// allocate gives a pod what is reserved for it, all of it or nothing.
func (d *Devices) allocate(ctx context.Context, r *reservation) error {
	pod := r.pod.UID
	d.mu.Lock()
	before := containers{}
	for name, of := range d.given[pod] {
		before[name] = maps.Clone(of)
	}
	d.mu.Unlock()
	err := d.allocateAll(ctx, r)
	if err == nil {
		err = d.save()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reserved[pod] != r {
		return errTakenBack
	}
	delete(d.reserved, pod)
	if err != nil {
		d.given[pod] = before
		if len(before) == 0 {
			delete(d.given, pod)
		}
	}
	return err
}

// set is a number of devices.
type set map[string]bool

// allocateAll goes through the containers. What an init container has is free for those after it, unless it is a
// sidecar.
func (d *Devices) allocateAll(ctx context.Context, r *reservation) error {
	reusable := map[string]set{}
	return eachContainer(r.pod, func(c *corev1.Container, passesOn bool) error {
		return d.allocateContainer(ctx, r, c, reusable, passesOn)
	})
}

// allocateContainer gives a container its devices; those of one that passes them on become reusable, those of any other
// cease to be.
func (d *Devices) allocateContainer(ctx context.Context, r *reservation, c *corev1.Container, reusable map[string]set, passesOn bool) error {
	d.mu.Lock()
	names := d.wanted(r.pod, c)
	d.mu.Unlock()
	for _, name := range names {
		ids, err := d.allocateResource(ctx, r, c, name, reusable[name])
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

// allocateResource gives a container its devices of one resource, or tells which it has already.
func (d *Devices) allocateResource(ctx context.Context, r *reservation, c *corev1.Container, name string, reusable set) ([]string, error) {
	leave, err := d.asked.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer leave()
	d.mu.Lock()
	has := d.given[r.pod.UID][c.Name][name]
	d.mu.Unlock()
	if has == nil {
		if has, err = d.choose(ctx, r, c, name, reusable); err != nil {
			return nil, err
		}
	}
	ids := has.all()
	if has.answer != nil {
		return ids, nil
	}
	answer, err := d.askFor(ctx, name, ids)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return ids, d.insert(r, c.Name, name, &allocation{ids: has.ids, answer: answer})
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

// choose gives a container healthy devices: those that an earlier container of the pod passes on, then those that the
// plugin prefers, then any. The plugin has still to be asked for them.
func (d *Devices) choose(ctx context.Context, r *reservation, c *corev1.Container, name string, reusable set) (*allocation, error) {
	n := wants(c, name)
	d.mu.Lock()
	chosen, free, err := d.candidates(r.pod.UID, name, n, reusable)
	of := d.resources[name]
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var preferred []string
	if len(chosen) < n {
		if preferred, err = d.preferred(ctx, of, chosen, free, n); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if chosen, free, err = d.candidates(r.pod.UID, name, n, reusable); err != nil { // a device may have failed meanwhile
		return nil, err
	}
	passed := len(chosen)
	for _, id := range append(preferred, free...) {
		if len(chosen) < n && slices.Contains(free, id) && !slices.Contains(chosen, id) {
			chosen = append(chosen, id)
		}
	}
	a := &allocation{ids: d.byNUMA(name, chosen)}
	if err := d.insert(r, c.Name, name, a); err != nil {
		return nil, err
	}
	r.need[name] -= len(chosen) - passed
	return a, nil
}

// candidates are the devices that a container has for sure, and the free ones among which the rest is chosen. mu is
// held.
func (d *Devices) candidates(pod types.UID, name string, n int, reusable set) (chosen, free []string, err error) {
	if free, err = d.unused(name); err != nil {
		return nil, nil, err
	}
	for _, id := range d.resources[name].healthy() {
		if reusable[id] && len(chosen) < n {
			chosen = append(chosen, id)
		}
	}
	return chosen, free, d.enough(pod, name, 0, n-len(chosen))
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
