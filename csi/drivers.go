package csi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/internal/keylock"
	"github.com/nodelet/nodelet/internal/waiting"
)

// registrationTimeout is how long a step waits for its driver to register before it fails with what it waits for.
const registrationTimeout = 5 * time.Second

// errNoDriver is in the chain of errors about drivers that are not registered.
var errNoDriver = errors.New("is not registered")

// drivers are the registered drivers and the pods that wait for others.
type drivers struct {
	// reports are locks, by name of a driver: what is reported of it last is what byName has.
	reports keylock.Keyed

	mu     sync.Mutex
	byName map[string]*driver
	// registered is closed, and replaced, when a driver registers.
	registered chan struct{}
	waiting    waiting.Pods[string]
	closed     bool
}

// newDrivers returns the in-tree drivers, which are always registered.
func newDrivers(inTree []InTreeDriver) *drivers {
	all := &drivers{byName: map[string]*driver{}, registered: make(chan struct{})}
	for _, d := range inTree {
		one := &driver{name: d.Plugin, node: d.Node}
		one.capabilities.Store(&capabilities{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: true})
		all.byName[d.Plugin] = one
	}
	return all
}

// get returns a driver for a pod. It waits a while for one that is not registered; after that the pod is woken when it
// registers. The connection stays open until done is called.
func (a *drivers) get(ctx context.Context, name string, pod types.UID) (d *driver, done func(), err error) {
	timeout := time.NewTimer(registrationTimeout)
	defer timeout.Stop()
	for {
		a.mu.Lock()
		d, registered := a.byName[name], a.registered
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
	if d = a.byName[name]; d == nil {
		return nil, func() {}
	}
	d.calls.Add(1)
	return d, d.calls.Done
}

// add reports a driver and registers it, in place of an earlier one of its name. It returns the pods that wait for it.
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
		return nil, errors.New("the node agent is shutting down")
	}
	a.byName[d.name].retire()
	a.byName[d.name] = d
	close(a.registered)
	a.registered = make(chan struct{})
	return a.waiting.Take(d.name), nil
}

// remove unregisters a driver. It reports whether it was still registered: another of its name may have replaced it.
func (a *drivers) remove(d *driver) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byName[d.name] != d {
		return false
	}
	delete(a.byName, d.name)
	d.retire()
	return true
}

// retire closes a driver's connection when its calls have ended.
func (d *driver) retire() {
	if d == nil {
		return
	}
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
	for name, d := range a.byName {
		if d.conn != nil {
			_ = d.conn.Close() // the process ends
		}
		delete(a.byName, name)
	}
}

// registration returns a channel that is closed when a driver registers, and whether the named one is registered now.
func (a *drivers) registration(name string) (next <-chan struct{}, registered bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.registered, a.byName[name] != nil
}

// mayExpand reports whether a driver can grow volumes. For one that is not registered that is not known: it may.
func (a *drivers) mayExpand(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.byName[name]
	return d == nil || d.can(csipb.NodeServiceCapability_RPC_EXPAND_VOLUME)
}

// Drivers returns the registered CSI drivers, in no order.
func (c *CSI) Drivers() []DriverInfo {
	c.drivers.mu.Lock()
	defer c.drivers.mu.Unlock()
	var all []DriverInfo
	for _, d := range c.drivers.byName {
		if !inTree(d.name) {
			all = append(all, d.info)
		}
	}
	return all
}
