package devices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// errGone is the error of a call to a plugin that is not connected.
var errGone = errors.New("the device plugin is gone; is its pod running?")

// use returns the plugin of a resource and its options; nil for what is not known. If there is no plugin, the pod is
// woken when one lists its devices. The connection stays open until done is called.
func (d *Devices) use(name string, pod types.UID) (p *plugin, options *api.DevicePluginOptions, done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.resources[name]; r != nil {
		p, options = r.plugin, r.options
	}
	if p == nil {
		d.waiting.Add(name, pod)
		return nil, options, func() {}
	}
	p.calls.Add(1)
	return p, options, p.calls.Done
}

// Connected returns the resources whose plugins are connected now, in no order.
func (d *Devices) Connected() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for name, r := range d.resources {
		if r.plugin != nil {
			names = append(names, name)
		}
	}
	return names
}

// prefer asks the plugin which n devices it prefers: all that are chosen already, the others of the free ones.
func (p *plugin) prefer(ctx context.Context, chosen, free []string, n int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer, err := p.client.GetPreferredAllocation(ctx, &api.PreferredAllocationRequest{
		ContainerRequests: []*api.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs:   append(slices.Clone(chosen), free...),
			MustIncludeDeviceIDs: chosen,
			AllocationSize:       int32(n),
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
	}
	if len(answer.ContainerResponses) == 0 {
		return nil, nil
	}
	return answer.ContainerResponses[0].DeviceIDs, nil
}

// act makes a call that has the plugin work. The end of ctx does not cancel it, because the plugin may go on: until it
// has answered, the caller keeps the devices and the lock of Allocate. Then act returns the error of ctx.
func act(ctx context.Context, do func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	calling, cancel := context.WithTimeout(context.WithoutCancel(ctx), actTimeout)
	defer cancel()
	return cmp.Or(do(calling), ctx.Err())
}

// allocate asks the plugin to make devices ready for a container.
func (p *plugin) allocate(ctx context.Context, ids []string) (*api.ContainerAllocateResponse, error) {
	var answer *api.AllocateResponse
	err := act(ctx, func(ctx context.Context) (err error) {
		answer, err = p.client.Allocate(ctx, &api.AllocateRequest{
			ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}},
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(answer.ContainerResponses) == 0 {
		return nil, fmt.Errorf("no containers return in allocation response %v", answer)
	}
	return answer.ContainerResponses[0], nil
}

// preStart asks the plugin to prepare devices right before a container starts.
func (p *plugin) preStart(ctx context.Context, ids []string) error {
	err := act(ctx, func(ctx context.Context) error {
		_, err := p.client.PreStartContainer(ctx, &api.PreStartContainerRequest{DevicesIds: ids})
		return err
	})
	if err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}
