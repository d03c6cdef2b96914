package devices

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Reserve reserves the devices that the containers of a pod request, or returns why the pod cannot have them. It
// calls no plugin, so that pods are served in order and none waits for another here. near says which NUMA nodes they
// should come from.
//
// The returned function waits for the pods that were served before and request one of the resources, and calls the
// plugins. When it returns, the allocation is on the disk, or the pod has what it had before. It has to be called,
// because it ends the reservation; if its context has ended, it calls no plugin. A pod that has everything that it
// requests is served as by Resume.
func (d *Devices) Reserve(pod *corev1.Pod, near Near) (allocate func(context.Context) error, err error) {
	d.mu.Lock()
	var r *reservation
	asks := len(d.wantedBy(pod)) > 0
	if asks {
		r, err = d.reserve(pod, near)
	}
	d.mu.Unlock()
	switch {
	case !asks || err != nil:
		return nil, err
	case r == nil:
		return d.Resume(pod), nil
	}
	return func(ctx context.Context) error { return d.allocate(ctx, r) }, nil
}

// Rejection returns why Reserve would refuse a pod now; nil if it would not. Nothing is reserved.
func (d *Devices) Rejection(pod *corev1.Pod) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.wantedBy(pod)) == 0 {
		return nil
	}
	_, _, err := d.need(pod)
	return err
}

// ReleaseEnded releases the devices of ended pods, so that others can have them. It writes nothing: they are in the
// checkpoint until the next Release or allocation.
func (d *Devices) ReleaseEnded(ended func(types.UID) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free(ended)
}

// Release releases the devices of a pod that is gone.
func (d *Devices) Release(pod types.UID) {
	d.mu.Lock()
	d.free(func(uid types.UID) bool { return uid == pod })
	d.giveBack(pod)
	unsaved := d.unsaved
	d.mu.Unlock()
	if unsaved {
		d.keep()
	}
}

// Known reports whether a resource belongs to a plugin: then its devices are allocated here and counted nowhere else.
func (d *Devices) Known(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known(name)
}

// errTakenBack is the error for a pod that is gone while its plugins were called.
var errTakenBack = errors.New("the devices of the pod were released; the pod is being removed")

// allocate allocates everything that is reserved for a pod, or nothing.
func (d *Devices) allocate(ctx context.Context, r *reservation) error {
	pod := r.pod.UID
	d.mu.Lock()
	before := map[slot]*allocation{}
	for _, s := range d.slotsOf(pod) {
		before[s] = d.given[s]
	}
	d.mu.Unlock()
	err := d.awaitTurn(ctx, r)
	if err == nil {
		err = d.allocateAll(ctx, r)
	}
	if err == nil {
		err = d.save()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endTurn(r)
	if d.reserved[pod] != r {
		return errTakenBack
	}
	delete(d.reserved, pod)
	if err != nil {
		d.free(func(uid types.UID) bool { return uid == pod })
		maps.Copy(d.given, before)
	}
	return err
}

// allocateAll serves the containers in order. The devices of an init container are free for those after it, unless it
// is a sidecar.
func (d *Devices) allocateAll(ctx context.Context, r *reservation) error {
	reusable := map[string]set{}
	for role, c := range podutil.ContainersWithResources(&r.pod.Spec) {
		if err := d.allocateContainer(ctx, r, role, c, reusable); err != nil {
			return err
		}
	}
	return nil
}

// allocateContainer allocates the devices of one container and updates those that later containers may reuse.
func (d *Devices) allocateContainer(ctx context.Context, r *reservation, role podutil.Role, c *corev1.Container,
	reusable map[string]set) error {
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
			if role == podutil.RoleInit {
				reusable[name][id] = true
			} else {
				delete(reusable[name], id)
			}
		}
	}
	return nil
}

// allocateResource allocates the devices of one resource to a container, or returns those that it has.
func (d *Devices) allocateResource(ctx context.Context, r *reservation, c *corev1.Container, name string,
	reusable set) ([]string, error) {
	leave, err := d.asked.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer leave()
	d.mu.Lock()
	has := d.given[slot{r.pod.UID, c.Name, name}]
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
	p, _, done := d.use(name, r.pod.UID)
	defer done()
	if p == nil {
		return nil, errGone
	}
	began := time.Now()
	answer, err := p.allocate(ctx, ids)
	d.cfg.Allocated(p.resource, time.Since(began))
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return ids, d.insert(r, c.Name, name, &allocation{ids: has.ids, answer: answer})
}

// choose selects healthy devices for a container: those that an earlier container of the pod passes on, then those of
// the preferred NUMA nodes, then those that the plugin prefers, then any. The plugin is not asked to allocate them
// yet.
func (d *Devices) choose(ctx context.Context, r *reservation, c *corev1.Container, name string,
	reusable set) (*allocation, error) {
	n := wants(c, name)
	d.mu.Lock()
	chosen, free, err := d.nearest(r, c, name, reusable)
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	preferred, err := d.preferred(ctx, r.pod.UID, name, chosen, free, n)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if chosen, free, err = d.nearest(r, c, name, reusable); err != nil { // a device may have failed meanwhile
		return nil, err
	}
	passed := 0
	for _, id := range chosen {
		if reusable[id] {
			passed++
		}
	}
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
	d.assumeOthers(r, name, chosen)
	return a, nil
}

// preferred returns the devices that the plugin prefers; none if it has no preference or nothing is left to choose.
func (d *Devices) preferred(ctx context.Context, pod types.UID, name string, chosen, free []string,
	n int) ([]string, error) {
	p, options, done := d.use(name, pod)
	defer done()
	switch {
	case len(chosen) >= n, !options.GetGetPreferredAllocationAvailable():
		return nil, nil
	case p == nil:
		return nil, errGone
	}
	return p.prefer(ctx, chosen, free, n)
}
