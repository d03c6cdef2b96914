package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/nodelet/nodelet/plugins"
)

// driver is one instance of a registered driver. While a driver is being updated it has two.
type driver struct {
	name, endpoint string
	conn           *grpc.ClientConn
	client         api.DRAPluginClient
	calls          sync.WaitGroup
	// up: the instance is connected. DRA.mu guards it.
	up bool
	// health is what it reports about its devices; nil if it does not serve that, or if it is not needed.
	health *reports
}

// Accept connects to a driver that has registered.
func (d *DRA) Accept(_ context.Context, info plugins.Info) (dismiss func(context.Context), err error) {
	if info.Name == "" {
		return nil, errors.New("the DRA driver has registered without a name")
	}
	conn, err := plugins.Dial(info.Endpoint)
	if err != nil {
		return nil, err
	}
	p := &driver{name: info.Name, endpoint: info.Endpoint, conn: conn}
	following, cancel := context.WithCancel(d.background.Context())
	p.health = reportsOf(d, p.name, conn, info.Versions)
	if p.client, err = clientFor(conn, info.Versions); err == nil {
		err = d.admit(following, p)
	}
	if err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("DRA driver %s at %s: %w", info.Name, info.Endpoint, err), conn.Close())
	}
	d.log.Info("DRA driver is registered", "driver", p.name, "endpoint", p.endpoint)
	return func(context.Context) {
		d.dismiss(p)
		cancel() // closes the connection
	}, nil
}

// clientFor returns a client for the first API version of the driver's list that nodelet supports.
func clientFor(conn *grpc.ClientConn, services []string) (api.DRAPluginClient, error) {
	for _, s := range services {
		switch s {
		case api.DRAPluginService:
			return api.NewDRAPluginClient(conn), nil
		case v1beta1.DRAPluginService:
			return v1beta1.V1Beta1ClientWrapper{DRAPluginClient: v1beta1.NewDRAPluginClient(conn)}, nil
		}
	}
	return nil, fmt.Errorf("it serves %q; nodelet supports only %q", services,
		[]string{api.DRAPluginService, v1beta1.DRAPluginService})
}

// admit adds an instance to those of its driver and follows its connection until ctx ends.
func (d *DRA) admit(ctx context.Context, p *driver) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.background.Ended() {
		return plugins.ErrEnding
	}
	if slices.ContainsFunc(d.drivers[p.name], func(other *driver) bool { return other.endpoint == p.endpoint }) {
		return errors.New("another instance has registered with this endpoint")
	}
	d.drivers[p.name] = append(d.drivers[p.name], p)
	d.sync(p.name)
	d.background.Go(func() { d.follow(ctx, p) })
	if p.health != nil {
		d.background.Go(func() { p.health.run(ctx) })
	}
	if !d.registered[p.name] {
		d.registered[p.name] = true
		pods := d.claims.holders(p.name, allDevices)
		d.background.Go(func() { d.healthChanged(pods) })
	}
	return nil
}

// follow keeps an instance connected, and records whether it is, until ctx ends.
func (d *DRA) follow(ctx context.Context, p *driver) {
	defer p.retire()
	for {
		state := p.conn.GetState()
		d.connected(p, state == connectivity.Ready)
		if state == connectivity.Idle {
			p.conn.Connect()
		}
		if !p.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// connected records whether an instance is connected, and wakes the pods that wait for its driver.
func (d *DRA) connected(p *driver, up bool) {
	d.mu.Lock()
	if p.up == up {
		d.mu.Unlock()
		return
	}
	p.up = up
	d.sync(p.name)
	var pods []types.UID
	if up {
		pods = d.waiting.Take(p.name)
	}
	d.mu.Unlock()
	if len(pods) > 0 {
		d.cfg.Wake(pods)
	}
}

// dismiss removes an instance.
func (d *DRA) dismiss(p *driver) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := slices.DeleteFunc(d.drivers[p.name], func(other *driver) bool { return other == p })
	if d.drivers[p.name] = left; len(left) == 0 {
		delete(d.drivers, p.name)
	}
	d.log.Info("DRA driver is no longer registered", "driver", p.name, "endpoint", p.endpoint)
	d.sync(p.name)
}

// retire closes the connection after the calls on it have ended.
func (p *driver) retire() {
	p.calls.Wait()
	_ = p.conn.Close() // nothing is sent any more
}

// usable reports whether an instance of the driver is connected. mu is held.
func (d *DRA) usable(name string) bool {
	return slices.ContainsFunc(d.drivers[name], func(p *driver) bool { return p.up })
}

// use returns the instance that serves a driver: the newest connected one, or else the newest. If none is connected the
// pod is woken when one connects. The connection stays open until done is called.
func (d *DRA) use(name string, pod types.UID) (p *driver, done func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.usable(name) {
		d.waiting.Add(name, pod)
	}
	for _, one := range d.drivers[name] {
		if p == nil || one.up || !p.up {
			p = one
		}
	}
	if p == nil || d.background.Ended() {
		return nil, nil, fmt.Errorf("DRA driver %s is not registered", name)
	}
	p.calls.Add(1)
	return p, p.calls.Done, nil
}

// call makes one call to a driver, within callTimeout, unless ctx has ended. The end of ctx does not cancel it:
// the driver may go on with its work, and nobody would know when it ends.
func (d *DRA) call(ctx context.Context, name string, pod types.UID,
	do func(context.Context, api.DRAPluginClient) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p, done, err := d.use(name, pod)
	if err != nil {
		return err
	}
	defer done()
	calling, cancel := context.WithTimeout(d.background.Context(), callTimeout)
	defer cancel()
	return do(calling, p.client)
}
