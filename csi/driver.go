package csi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/plugins"
)

// callTimeout bounds a call to a driver, as the kubelet's csiTimeout does.
const callTimeout = 2 * time.Minute

// DriverInfo is what a driver says about this node (NodeGetInfo).
type DriverInfo struct {
	Name, NodeID string
	MaxVolumes   int64 // 0: no limit
	Topology     map[string]string
}

// driver is a registered driver.
type driver struct {
	name    string
	conn    *grpc.ClientConn // nil for an in-tree driver
	node    csipb.NodeClient
	info    DriverInfo    // what was last reported of it; no NodeID: to be reported again
	timeout time.Duration // not for an in-tree driver
	called  func(driver, method string, took time.Duration, err error)
	calls   sync.WaitGroup
	// capabilities are those of the process that serves the connection.
	capabilities atomic.Pointer[capabilities]
	// exceeded asks for a refresh of its limits; stop ends that and followProcess. Not for an in-tree driver.
	exceeded latest.Signal
	stop     context.CancelFunc
}

// connect connects to a driver and reads its capabilities.
func connect(ctx context.Context, name, endpoint string, cfg *Config) (*driver, error) {
	conn, err := plugins.Dial(endpoint)
	if err != nil {
		return nil, err
	}
	d := &driver{
		name:     name,
		conn:     conn,
		node:     csipb.NewNodeClient(conn),
		timeout:  cfg.CallTimeout,
		called:   cfg.Called,
		exceeded: latest.NewSignal(),
	}
	if err := d.ask(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return d, nil
}

// ask asks a new process about the node and what it can do. The capabilities come last: no later call can connect to
// another process before followProcess does.
func (d *driver) ask(ctx context.Context) (err error) {
	if d.info, err = d.nodeInfo(ctx, grpc.WaitForReady(true)); err == nil {
		err = d.askCapabilities(ctx)
	}
	return err
}

// nodeInfo asks the driver about the node.
func (d *driver) nodeInfo(ctx context.Context, opts ...grpc.CallOption) (DriverInfo, error) {
	r, err := call(ctx, d, "NodeGetInfo", d.node.NodeGetInfo, &csipb.NodeGetInfoRequest{}, opts...)
	if err == nil && r.NodeId == "" {
		err = fmt.Errorf("CSI driver %s: NodeGetInfo: the driver returned no node ID", d.name)
	}
	return DriverInfo{
		Name:       d.name,
		NodeID:     r.GetNodeId(),
		MaxVolumes: r.GetMaxVolumesPerNode(),
		Topology:   r.GetAccessibleTopology().GetSegments(),
	}, err
}

// call makes one call to a driver. Errors name the call, but never contain the request, which may hold secrets.
func call[Req, Resp any](ctx context.Context, d *driver, verb string,
	do func(context.Context, Req, ...grpc.CallOption) (Resp, error), r Req, opts ...grpc.CallOption) (Resp, error) {
	if inTree(d.name) { // it limits its own work: a repair must not be cut short
		resp, err := do(ctx, r, opts...)
		if err != nil {
			err = &callError{err, err.Error()}
		}
		return resp, err
	}
	bound, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	began := time.Now()
	resp, err := do(bound, r, opts...)
	took := time.Since(began)
	d.called(d.name, verb, took, err)
	late := took >= d.timeout-d.timeout/10 // the driver's deadline may be a little earlier
	switch {
	case err == nil:
		return resp, nil
	case ctx.Err() == nil && late && status.Code(err) == codes.DeadlineExceeded:
		return resp, &callError{err, fmt.Sprintf("CSI driver %s did not answer %s within %s; it may still be working on it",
			d.name, verb, d.timeout)}
	}
	return resp, &callError{err, fmt.Sprintf("CSI driver %s: %s: %v", d.name, verb, err)}
}

// callError is the error of a call to a driver.
type callError struct {
	err  error
	text string
}

func (e *callError) Error() string { return e.text }

func (e *callError) Unwrap() error { return e.err }

// final reports whether a failed call had no effect. By the specification all other codes leave that open.
func final(err error) bool {
	call, ok := errors.AsType[*callError](err)
	if !ok {
		return false
	}
	switch status.Code(call.err) {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted,
		codes.Unknown:
		return false
	}
	return true
}
