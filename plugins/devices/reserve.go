package devices

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// reservation is what a pod may have, while plugins are asked for it.
type reservation struct {
	pod *corev1.Pod
	// need is how many devices, of those that are free, are kept for the pod.
	need map[string]int
}

// Reserve sets the devices aside that the containers of a pod ask for, or says why the pod cannot have them. It calls
// no plugin, so that who comes first is served first and nobody waits. spent tells of which pods the devices may be
// taken.
//
// What it returns has the plugins make the devices ready; nil where the pod has all that it asks for. When it returns,
// that is kept on the disk, or the pod has what it had before.
func (d *Devices) Reserve(pod *corev1.Pod, spent func(types.UID) bool) (allocate func(context.Context) error, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.asks(pod) {
		return nil, nil
	}
	d.free(spent)
	r, err := d.reserve(pod)
	if err != nil || r == nil {
		return nil, err
	}
	return func(ctx context.Context) error { return d.allocate(ctx, r) }, nil
}

// reserve sets as many devices aside as a pod lacks; nil where it lacks none. mu is held.
func (d *Devices) reserve(pod *corev1.Pod) (*reservation, error) {
	need, passed := map[string]int{}, map[string]int{} // passed: those of init containers that the next may have
	lacks := false
	err := eachContainer(pod, func(c *corev1.Container, passesOn bool) error {
		for _, name := range d.wanted(pod, c) {
			n, has := wants(c, name), d.given[pod.UID][c.Name][name]
			switch {
			case has == nil:
				fresh := max(0, n-passed[name])
				if err := d.enough(pod.UID, name, need[name], fresh); err != nil {
					return err
				}
				need[name] += fresh
			case len(has.all()) != n:
				return fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d", pod.UID, c.Name, name, len(has.all()), n)
			}
			lacks = lacks || has == nil || has.answer == nil
			if passesOn {
				passed[name] = max(passed[name], n)
			} else {
				passed[name] = max(0, passed[name]-n)
			}
		}
		return nil
	})
	if err != nil || !lacks {
		return nil, err
	}
	r := &reservation{pod: pod, need: need}
	d.reserved[pod.UID] = r
	return r, nil
}

// enough: beside those set aside, for this pod already and for others, so many more devices are free. mu is held.
func (d *Devices) enough(pod types.UID, name string, already, more int) error {
	free, err := d.unused(name)
	if err != nil {
		return err
	}
	if available := len(free) - d.othersReserve(pod, name) - already; more > 0 && available < more {
		return fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, more, max(0, available))
	}
	return nil
}

// othersReserve is how many devices are set aside for other pods than this. mu is held.
func (d *Devices) othersReserve(pod types.UID, name string) (sum int) {
	for other, r := range d.reserved {
		if other != pod {
			sum += r.need[name]
		}
	}
	return sum
}

// unused are the healthy devices of a resource that are not given out, sorted. mu is held.
func (d *Devices) unused(name string) ([]string, error) {
	r := d.resources[name]
	if r == nil {
		return nil, fmt.Errorf("cannot allocate unregistered device %s", name)
	}
	healthy := r.healthy()
	if len(healthy) == 0 {
		return nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", name)
	}
	taken := d.taken(name)
	return slices.DeleteFunc(healthy, func(id string) bool { return taken[id] }), nil
}

// eachContainer goes through the containers of a pod in the order in which they run, until one fails. passesOn: it has
// ended when the next begins.
func eachContainer(pod *corev1.Pod, do func(c *corev1.Container, passesOn bool) error) error {
	for role, c := range podutil.Containers(&pod.Spec) {
		if role == podutil.RoleEphemeral {
			continue
		}
		if err := do(c, role == podutil.RoleInit); err != nil {
			return err
		}
	}
	return nil
}

// wants is how many devices of a resource a container asks for.
func wants(c *corev1.Container, name string) int {
	q := c.Resources.Limits[corev1.ResourceName(name)]
	return int(q.Value())
}
