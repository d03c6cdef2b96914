package devices

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// registerTimeout is how long a pod that has devices, and of which nothing runs, waits until its plugins have
// registered again. It is shorter than the minute that tests of the kubelet allow.
const registerTimeout = 30 * time.Second

// Resume returns nil if a pod may start with the devices that were allocated to it earlier, or if it has none. If a
// device cannot be used, it returns a function that waits until all can be: after a reboot, the plugins register some
// time after the agent has started, or never. If that takes too long, the function returns an error.
func (d *Devices) Resume(pod *corev1.Pod) (wait func(context.Context) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.usable(pod) == nil {
		return nil
	}
	return func(ctx context.Context) error { return awaitUsable(ctx, d, pod) }
}

func awaitUsable(ctx context.Context, d *Devices, pod *corev1.Pod) error {
	timeout := time.NewTimer(d.cfg.RegisterTimeout)
	defer timeout.Stop()
	for late := false; ; {
		d.mu.Lock()
		err, changed := d.usable(pod), d.changed
		d.mu.Unlock()
		if err == nil || late {
			return err
		}
		select {
		case <-changed:
		case <-timeout.C:
			late = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// usable returns an error, as the kubelet's, unless the plugins of all devices of a pod have reported these as healthy.
// mu is held.
func (v *inventory) usable(pod *corev1.Pod) error {
	for _, c := range podutil.ContainersWithResources(&pod.Spec) {
		for _, name := range v.wanted(pod, c) {
			a := v.given[slot{pod.UID, c.Name, name}]
			if a == nil {
				continue
			}
			if _, err := v.unused(name); err != nil {
				return err
			}
			for _, id := range a.all() {
				if !v.resources[name].devices[id].healthy {
					return fmt.Errorf("previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s", name)
				}
			}
		}
	}
	return nil
}
