package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/internal/keylock"
	"github.com/nodelet/nodelet/internal/waiting"
	"github.com/nodelet/nodelet/plugins"
)

// registrationTimeout is how long a step waits for its driver to register before it fails with what it waits for.
const registrationTimeout = 5 * time.Second

// errNoDriver is in the chain of errors about drivers that are not registered.
var errNoDriver = errors.New("is not registered")

// drivers are the registered drivers and the pods that wait for others.
type drivers struct {
	// reports are locks, by name of a driver: what is reported of it last is what serves.
	reports keylock.Keyed

	mu sync.Mutex
	// byName are the registrations of each driver, the newest last: that one serves. When its socket goes, as after an
	// update that has failed, the one before serves again.
	byName map[string][]*driver
	// registered is closed, and replaced, when a driver registers.
	registered chan struct{}
	waiting    waiting.Pods[string]
	closed     bool
}

// newDrivers returns the in-tree drivers, which are always registered.
func newDrivers(inTree []InTreeDriver) *drivers {
	all := &drivers{byName: map[string][]*driver{}, registered: make(chan struct{})}
	for _, d := range inTree {
		one := &driver{name: d.Plugin, node: d.Node}
		one.capabilities.Store(&capabilities{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: true})
		all.byName[d.Plugin] = []*driver{one}
	}
	return all
}

// serving returns the registration of a driver that serves, nil if it is not registered. The caller holds mu.
func (a *drivers) serving(name string) *driver {
	if all := a.byName[name]; len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

// serves reports whether a registration is the one that serves.
func (a *drivers) serves(d *driver) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.serving(d.name) == d
}

// get returns a driver for a pod. It waits a while for one that is not registered; after that the pod is woken when it
// registers. The connection stays open until done is called.
func (a *drivers) get(ctx context.Context, name string, pod types.UID) (d *driver, done func(), err error) {
	timeout := time.NewTimer(registrationTimeout)
	defer timeout.Stop()
	for {
		a.mu.Lock()
		d, registered := a.serving(name), a.registered
		switch {
		case d != nil:
			d.calls.Add(1)
		case pod != "":
			a.waiting.Add(name, pod)
		}
		a.mu.Unlock()
		if d != nil {
			return d, d.calls.Done, nil
		}
		select {
		case <-registered:
			continue
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-timeout.C:
		}
		return nil, nil, fmt.Errorf("CSI driver %s %w on this node: is its node plugin running?", name, errNoDriver)
	}
}

// now returns a driver, nil if it is not registered. done is as in get.
func (a *drivers) now(name string) (d *driver, done func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d = a.serving(name); d == nil {
		return nil, func() {}
	}
	d.calls.Add(1)
	return d, d.calls.Done
}

// add reports a driver and registers it: it serves in place of an earlier one of its name. It returns the pods that
// wait for it.
func (a *drivers) add(ctx context.Context, d *driver,
	report func(context.Context, DriverInfo) error) ([]types.UID, error) {
	unlock, err := a.reports.Lock(ctx, d.name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := report(ctx, d.info); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, plugins.ErrEnding
	}
	a.byName[d.name] = append(a.byName[d.name], d)
	close(a.registered)
	a.registered = make(chan struct{})
	return a.waiting.Take(d.name), nil
}

// remove unregisters a driver. now is the registration of its name that serves now, nil if there is none. changed:
// another one served before, so that now is to be reported.
func (a *drivers) remove(d *driver) (now *driver, changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, i := a.serving(d.name), slices.Index(a.byName[d.name], d)
	if i < 0 {
		return nil, false // all are closed
	}
	a.byName[d.name] = slices.Delete(a.byName[d.name], i, i+1)
	d.retire()
	now = a.serving(d.name)
	if now != nil && now != before {
		now.unreport()
	}
	return now, now != before
}

// doubt makes the next answer of a registration count as a change, and reports whether it serves.
func (a *drivers) doubt(d *driver) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	d.unreport()
	return a.serving(d.name) == d
}

// unreport makes the next answer of a registration count as a change. mu is held.
func (d *driver) unreport() { d.info = DriverInfo{Name: d.name} }

// retire closes a driver's connection when its calls have ended.
func (d *driver) retire() {
	d.stop()
	go func() {
		d.calls.Wait()
		_ = d.conn.Close() // nothing is sent any more
	}()
}

// close closes all connections. No driver can register any more.
func (a *drivers) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, all := range a.byName {
		for _, d := range all {
			if d.conn != nil {
				_ = d.conn.Close() // the process ends
			}
		}
	}
	clear(a.byName)
}

// registration returns a channel that is closed when a driver registers, and whether the named one is registered now.
func (a *drivers) registration(name string) (next <-chan struct{}, registered bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.registered, a.serving(name) != nil
}

// mayExpand reports whether a driver can grow volumes. For one that is not registered that is not known: it may.
func (a *drivers) mayExpand(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.serving(name)
	return d == nil || d.can(csipb.NodeServiceCapability_RPC_EXPAND_VOLUME)
}

// Drivers returns the registered CSI drivers, in no order.
func (c *CSI) Drivers() []DriverInfo {
	c.drivers.mu.Lock()
	defer c.drivers.mu.Unlock()
	var all []DriverInfo
	for name := range c.drivers.byName {
		if d := c.drivers.serving(name); d != nil && !inTree(name) {
			all = append(all, d.info)
		}
	}
	return all
}
