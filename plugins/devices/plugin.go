package devices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nodelet/nodelet/plugins"
)

// resource is the devices of one resource name.
type resource struct {
	// plugin is the newest one that is connected; nil while none is. Only it is asked, and its devices count. older are
	// those that it has replaced and that have not ended yet, oldest first: if it ends first, the newest of them takes its
	// place.
	plugin *plugin
	older  []*plugin
	// options are those of the last plugin; nil if none has registered in this process.
	options *api.DevicePluginOptions
	devices map[string]device
	// timer ends the grace period of a plugin that is gone; nil while there is a plugin.
	timer *time.Timer
}

type device struct {
	healthy bool
	// numa are the NUMA nodes of the device.
	numa []int64
}

func (d device) equal(o device) bool { return d.healthy == o.healthy && slices.Equal(d.numa, o.numa) }

func (r *resource) stopTimer() {
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// healthy returns the IDs of the healthy devices, sorted.
func (r *resource) healthy() []string {
	ids := []string{}
	for id, d := range r.devices {
		if d.healthy {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// join makes p the plugin of the resource. An older one at the same socket has ended or is about to.
func (r *resource) join(p *plugin) {
	r.stopTimer()
	if r.plugin != nil {
		r.older = append(r.older, r.plugin)
	}
	r.older = slices.DeleteFunc(r.older, func(o *plugin) bool {
		same := o.socket == p.socket
		if same {
			o.cancel()
		}
		return same
	})
	r.plugin, r.options = p, p.options
}

// leave removes p, and makes the newest of the older plugins that of the resource if p was.
func (r *resource) leave(p *plugin) {
	r.older = slices.DeleteFunc(r.older, func(o *plugin) bool { return o == p })
	if r.plugin != p {
		return
	}
	r.plugin = nil
	if n := len(r.older); n > 0 {
		r.plugin, r.older = r.older[n-1], r.older[:n-1]
		r.options = r.plugin.options
		if r.plugin.devices != nil {
			r.devices = r.plugin.devices
		}
		return
	}
	for id, one := range r.devices {
		one.healthy = false
		r.devices[id] = one
	}
}

// plugin is a connected plugin.
type plugin struct {
	resource string
	socket   string
	options  *api.DevicePluginOptions
	conn     *grpc.ClientConn
	client   api.DevicePluginClient
	cancel   context.CancelFunc
	// calls are those in flight. One begins only while the plugin is that of its resource.
	calls sync.WaitGroup
	// devices are those that it has sent last; nil before the first time. Devices.mu guards them.
	devices map[string]device
}

// connect connects to a plugin, which becomes that of its resource.
func (d *Devices) connect(ctx context.Context, name, socket string) (*plugin, error) {
	conn, err := plugins.Dial(socket)
	if err != nil {
		return nil, err
	}
	p := &plugin{resource: name, socket: socket, conn: conn, client: api.NewDevicePluginClient(conn)}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	p.options, err = p.client.GetDevicePluginOptions(asking, &api.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("failed to get device plugin options: %w", err), conn.Close())
	}
	if err := d.install(p); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	d.cfg.Registered(name)
	d.log.Info("device plugin is registered", "resource", name, "socket", socket)
	return p, nil
}

// install makes p the plugin of its resource, and follows it.
func (d *Devices) install(p *plugin) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.background.Ended() {
		return plugins.ErrEnding
	}
	r := d.resources[p.resource]
	if r == nil {
		r = &resource{}
		d.resources[p.resource] = r
	}
	delete(d.withdrawn, p.resource)
	var own context.Context
	own, p.cancel = context.WithCancel(d.background.Context())
	r.join(p)
	d.background.Go(func() { d.follow(own, p) })
	return nil
}

// follow receives the plugin's lists of devices until the plugin ends, is dismissed, or is replaced. Then it lets the
// calls in flight end, because the plugin may go on with them, and closes the connection. At the end of the agent it
// closes it at once.
func (d *Devices) follow(ctx context.Context, p *plugin) {
	defer p.conn.Close()
	defer context.AfterFunc(d.background.Context(), func() { _ = p.conn.Close() })()
	stream, err := p.client.ListAndWatch(ctx, &api.Empty{})
	for err == nil {
		var list *api.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			d.listed(p, list.Devices)
		}
	}
	d.lost(p, err)
	if !d.background.Ended() { // else the plugin is still that of its resource, and its calls have failed
		p.calls.Wait()
	}
}

// listed stores a plugin's list of devices.
func (d *Devices) listed(p *plugin, list []*api.Device) {
	next, repeated := devicesByID(list)
	d.mu.Lock()
	r := d.resources[p.resource]
	first := p.devices == nil
	p.devices = next
	if r == nil || r.plugin != p {
		d.mu.Unlock()
		return
	}
	changed := first || !maps.EqualFunc(r.devices, next, device.equal)
	var holders []types.UID
	if changed {
		holders = d.holders(p.resource)
	}
	r.devices = next
	close(d.changed)
	d.changed = make(chan struct{})
	healthy := len(r.healthy())
	woken := d.waiting.Take(p.resource)
	d.mu.Unlock()
	if changed {
		if len(repeated) > 0 {
			d.log.Warn("device plugin lists devices several times; each counts once; it is unhealthy if any entry says so",
				"resource", p.resource, "devices", repeated)
		}
		d.log.Info("device plugin has listed its devices", "resource", p.resource, "all", len(next), "healthy", healthy)
		d.keep()
		d.notify()
	}
	if len(woken) > 0 {
		d.cfg.Wake(woken)
	}
	d.cfg.HealthChanged(holders)
}

// devicesByID returns the devices of a plugin's list. A plugin may send a device several times, for example for each of
// its NUMA nodes: repeated are those devices.
func devicesByID(list []*api.Device) (all map[string]device, repeated []string) {
	all = make(map[string]device, len(list))
	for _, l := range list {
		one, again := all[l.ID]
		if again {
			repeated = append(repeated, l.ID)
		}
		one.healthy = l.Health == api.Healthy && (one.healthy || !again)
		for _, n := range l.GetTopology().GetNodes() {
			if !slices.Contains(one.numa, n.ID) {
				one.numa = append(one.numa, n.ID)
			}
		}
		all[l.ID] = one
	}
	return all, repeated
}

// lost records that a plugin is gone: if it was the last of its resource, no device is healthy any more.
func (d *Devices) lost(p *plugin, why error) {
	d.mu.Lock()
	r := d.resources[p.resource]
	if d.background.Ended() || r == nil {
		d.mu.Unlock()
		return
	}
	newest := r.plugin == p
	r.leave(p)
	if !newest {
		d.mu.Unlock()
		return
	}
	advice := "its devices are not allocated until it registers again"
	if r.plugin == nil {
		d.await(p.resource, r)
	} else {
		advice = "an older plugin of the resource goes on"
	}
	holders := d.holders(p.resource)
	d.mu.Unlock()
	d.log.Warn("device plugin is gone, "+advice, "resource", p.resource, "socket", p.socket, "err", why)
	d.keep()
	d.notify()
	d.cfg.HealthChanged(holders)
}

// awaitAll starts the grace period of the plugins of an earlier process.
func (d *Devices) awaitAll() {
	d.mu.Lock()
	for name, r := range d.resources {
		d.await(name, r)
	}
	d.mu.Unlock()
	d.notify()
}

// await starts the grace period within which a plugin may register again. mu is held.
func (d *Devices) await(name string, r *resource) {
	r.timer = time.AfterFunc(d.cfg.Grace, func() {
		d.background.Begin(func() { d.withdraw(name, r) })
	})
}

// withdraw removes a resource whose plugin has not registered again.
func (d *Devices) withdraw(name string, r *resource) {
	d.mu.Lock()
	if d.background.Ended() || d.resources[name] != r || r.plugin != nil {
		d.mu.Unlock()
		return
	}
	delete(d.resources, name)
	d.withdrawn[name] = true
	holders := d.holders(name)
	d.mu.Unlock()
	d.log.Warn("device plugin has not registered again, its devices are removed from the node",
		"resource", name, "grace", d.cfg.Grace)
	d.keep()
	d.notify()
	d.cfg.HealthChanged(holders)
}

func (d *Devices) notify() {
	d.notifying.Lock()
	defer d.notifying.Unlock()
	d.cfg.Changed()
}

// Capacity returns the number of devices of each resource, and how many of them are healthy. Both are zero for a
// resource whose plugin has not registered in this process, or not again within the grace period.
func (d *Devices) Capacity() (capacity, allocatable corev1.ResourceList) {
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, r := range d.resources {
		all := len(r.devices)
		if r.options == nil {
			all = 0 // as an earlier process knew them
		}
		capacity[corev1.ResourceName(name)] = *quantity.NewQuantity(int64(all), quantity.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *quantity.NewQuantity(int64(len(r.healthy())), quantity.DecimalSI)
	}
	for name := range d.withdrawn {
		capacity[corev1.ResourceName(name)] = *quantity.NewQuantity(0, quantity.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *quantity.NewQuantity(0, quantity.DecimalSI)
	}
	return capacity, allocatable
}
