package devices

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Container returns what plugins add to a container that is about to be created, nil for a container without devices.
// It calls PreStartContainer of the plugins that want it. It also allocates devices to a container that was admitted
// without: its plugin registered later, or the checkpoint was lost.
func (d *Devices) Container(ctx context.Context, pod *corev1.Pod,
	c *corev1.Container) (*api.ContainerAllocateResponse, error) {
	d.mu.Lock()
	names := d.wanted(pod, c)
	d.mu.Unlock()
	if len(names) == 0 {
		return nil, nil
	}
	if d.of(pod.UID, c.Name, names) == nil {
		d.wait(pod.UID, names) // first: a plugin may list its devices before allocateLate has failed
		if err := d.allocateLate(ctx, pod); err != nil {
			return nil, err
		}
	}
	given := d.of(pod.UID, c.Name, names)
	if given == nil {
		return nil, errTakenBack
	}
	for _, name := range names {
		if err := d.preStart(ctx, pod.UID, name, given[name].all()); err != nil {
			return nil, err
		}
	}
	return d.merge(c.Name, given), nil
}

// allocateLate allocates devices to a pod that was admitted without them. Its containers may call it concurrently.
func (d *Devices) allocateLate(ctx context.Context, pod *corev1.Pod) error {
	leave, err := d.pods.Lock(ctx, string(pod.UID))
	if err != nil {
		return err
	}
	defer leave()
	allocate, err := d.Reserve(pod, nil)
	if err != nil || allocate == nil {
		return err
	}
	return allocate(ctx)
}

// of returns the allocations of a container by resource; nil if it lacks one of names.
func (d *Devices) of(pod types.UID, container string, names []string) map[string]*allocation {
	d.mu.Lock()
	defer d.mu.Unlock()
	has := map[string]*allocation{}
	for _, name := range names {
		a := d.given[slot{pod, container, name}]
		if a == nil || a.answer == nil {
			return nil
		}
		has[name] = a
	}
	return has
}

// wait wakes a pod when a plugin of one of the resources lists its devices.
func (d *Devices) wait(pod types.UID, names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		d.waiting.Add(name, pod)
	}
}

// preStart asks the plugin to prepare devices right before a container starts, if the plugin wants that. If the plugin
// has not registered in this process, that is not known and the container waits: a device that was not reset may be
// worse.
func (d *Devices) preStart(ctx context.Context, pod types.UID, name string, ids []string) error {
	p, options, done := d.use(name, pod)
	defer done()
	switch {
	case options == nil:
		return fmt.Errorf("the device plugin of %s has not registered since the node agent started; is its pod running?",
			name)
	case !options.PreStartRequired:
		return nil
	case p == nil:
		return fmt.Errorf("%s: %w", name, errGone)
	}
	return p.preStart(ctx, ids)
}

// merge merges the answers of several plugins. If two disagree, the one whose resource comes first by name counts.
func (d *Devices) merge(container string, given map[string]*allocation) *api.ContainerAllocateResponse {
	all := &api.ContainerAllocateResponse{Envs: map[string]string{}, Annotations: map[string]string{}}
	seen := map[string]string{}
	first := func(kind, key, value string) bool {
		before, twice := seen[kind+" "+key]
		if twice && before != value {
			d.log.Warn("device plugins disagree, using the first", "container", container, kind, key, "first", before, "other",
				value)
		}
		if !twice {
			seen[kind+" "+key] = value
		}
		return !twice
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		add(all, given[name].answer, first)
	}
	return all
}

// add adds what first accepts of an answer to all.
func add(all, one *api.ContainerAllocateResponse, first func(kind, key, value string) bool) {
	for key, value := range one.Envs {
		if first("env", key, value) {
			all.Envs[key] = value
		}
	}
	for key, value := range one.Annotations {
		if first("annotation", key, value) {
			all.Annotations[key] = value
		}
	}
	for _, m := range one.Mounts {
		if first("mount", m.ContainerPath, m.HostPath) {
			all.Mounts = append(all.Mounts, m)
		}
	}
	for _, dev := range one.Devices {
		if first("device", dev.ContainerPath, dev.HostPath) {
			all.Devices = append(all.Devices, dev)
		}
	}
	for _, cdi := range one.CdiDevices {
		if first("cdi", cdi.Name, "") {
			all.CdiDevices = append(all.CdiDevices, cdi)
		}
	}
}
