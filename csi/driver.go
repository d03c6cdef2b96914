package csi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/plugins"
)

const (
	// callTimeout bounds a call to a driver, as the kubelet's csiTimeout does.
	callTimeout = 2 * time.Minute
	// arrivalPatience is how long a step waits for its driver to register before it says what it waits for.
	arrivalPatience = 5 * time.Second
)

// DriverInfo is what a driver says of this node (NodeGetInfo).
type DriverInfo struct {
	Name, NodeID string
	MaxVolumes   int64 // 0: no limit
	Topology     map[string]string
}

// driver is a registered driver.
type driver struct {
	name    string
	conn    *grpc.ClientConn // nil for a Kind
	node    csipb.NodeClient
	can     map[csipb.NodeServiceCapability_RPC_Type]bool
	info    DriverInfo
	timeout time.Duration // not for a Kind
	calls   sync.WaitGroup
}

// connect reaches a driver and asks what it can do.
func (c *CSI) connect(ctx context.Context, name, endpoint string) (*driver, error) {
	conn, err := plugins.Dial(endpoint)
	if err != nil {
		return nil, err
	}
	d := &driver{name: name, conn: conn, node: csipb.NewNodeClient(conn), timeout: c.cfg.CallTimeout,
		can: map[csipb.NodeServiceCapability_RPC_Type]bool{}}
	if err := d.ask(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return d, nil
}

func (d *driver) ask(ctx context.Context) error {
	err := d.call(ctx, "NodeGetCapabilities", func(ctx context.Context) error {
		r, err := d.node.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{}, grpc.WaitForReady(true))
		for _, capability := range r.GetCapabilities() {
			d.can[capability.GetRpc().GetType()] = true
		}
		return err
	})
	if err != nil {
		return err
	}
	return d.call(ctx, "NodeGetInfo", func(ctx context.Context) error {
		r, err := d.node.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
		d.info = DriverInfo{Name: d.name, NodeID: r.GetNodeId(), MaxVolumes: r.GetMaxVolumesPerNode(),
			Topology: r.GetAccessibleTopology().GetSegments()}
		if err == nil && d.info.NodeID == "" {
			err = errors.New("the driver gave the node no ID")
		}
		return err
	})
}

// call makes one call to the driver. Its errors say which; requests, which hold secrets, are never in them.
func (d *driver) call(ctx context.Context, verb string, do func(ctx context.Context) error) error {
	if inTree(d.name) { // limits its own work: a repair must not be cut short
		if err := do(ctx); err != nil {
			return &callError{err, err.Error()}
		}
		return nil
	}
	bound, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	began := time.Now()
	err := do(bound)
	late := time.Since(began) >= d.timeout-d.timeout/10 // the driver may see the end of its time a little earlier
	switch {
	case err == nil:
		return nil
	case ctx.Err() == nil && late && status.Code(err) == codes.DeadlineExceeded:
		return &callError{err, fmt.Sprintf("CSI driver %s has not answered %s within %s; it may still be at it", d.name, verb, d.timeout)}
	}
	return &callError{err, fmt.Sprintf("CSI driver %s: %s: %v", d.name, verb, err)}
}

// callError is the answer of a driver, or the lack of one.
type callError struct {
	err  error
	text string
}

func (e *callError) Error() string { return e.text }

func (e *callError) Unwrap() error { return e.err }

// final says that a call has surely ended without effect. By the specification all other codes leave that open.
func final(err error) bool {
	var call *callError
	if !errors.As(err, &call) {
		return false
	}
	switch status.Code(call.err) {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted, codes.Unknown:
		return false
	}
	return true
}

// use finds a driver for a pod. It waits a while for one that is not registered; then the pod is woken when it comes. The
// connection stays until done is called.
func (c *CSI) use(ctx context.Context, name string, pod types.UID) (d *driver, done func(), err error) {
	patience := time.NewTimer(arrivalPatience)
	defer patience.Stop()
	for {
		c.mu.Lock()
		d, arrived := c.drivers[name], c.arrived
		if d != nil {
			d.calls.Add(1)
			delete(c.waiting[name], pod)
			c.mu.Unlock()
			return d, d.calls.Done, nil
		}
		if pod != "" {
			if c.waiting[name] == nil {
				c.waiting[name] = map[types.UID]bool{}
			}
			c.waiting[name][pod] = true
		}
		c.mu.Unlock()
		select {
		case <-arrived:
			continue
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-patience.C:
		}
		return nil, nil, fmt.Errorf("CSI driver %s %w on this node: is its node plugin running?", name, errNoDriver)
	}
}

// admit makes a driver known, in place of an earlier one of its name.
func (c *CSI) admit(d *driver) error {
	c.mu.Lock()
	if c.ctx.Err() != nil {
		c.mu.Unlock()
		return errors.New("the node agent ends")
	}
	old := c.drivers[d.name]
	c.drivers[d.name] = d
	close(c.arrived)
	c.arrived = make(chan struct{})
	pods := c.waiting[d.name]
	delete(c.waiting, d.name)
	c.mu.Unlock()
	retire(old)
	if len(pods) > 0 && c.cfg.Wake != nil {
		var all []types.UID
		for uid := range pods {
			all = append(all, uid)
		}
		c.cfg.Wake(all)
	}
	c.sweepAll()
	return nil
}

// dismiss forgets a driver, unless another of its name has come.
func (c *CSI) dismiss(ctx context.Context, d *driver) {
	c.mu.Lock()
	current := c.drivers[d.name] == d
	if current {
		delete(c.drivers, d.name)
	}
	c.mu.Unlock()
	if !current {
		return
	}
	retire(d)
	c.log.Info("CSI driver has withdrawn", "driver", d.name)
	if c.cfg.Gone != nil && ctx.Err() == nil {
		c.cfg.Gone(ctx, d.name)
	}
}

// retire closes a driver's connection when its calls have ended.
func retire(d *driver) {
	if d == nil {
		return
	}
	go func() {
		d.calls.Wait()
		_ = d.conn.Close() // nothing is sent any more
	}()
}

func (c *CSI) closeDrivers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, d := range c.drivers {
		if d.conn != nil {
			_ = d.conn.Close() // the agent ends
		}
		delete(c.drivers, name)
	}
}

// Drivers are the registered CSI drivers, in no order.
func (c *CSI) Drivers() []DriverInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []DriverInfo
	for _, d := range c.drivers {
		if !inTree(d.name) {
			all = append(all, d.info)
		}
	}
	return all
}

// mayExpand says whether a driver can grow volumes. Of one that is not registered that is not known.
func (c *CSI) mayExpand(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.drivers[name]
	return d == nil || d.can[csipb.NodeServiceCapability_RPC_EXPAND_VOLUME]
}
