package csi

import (
	"context"
	"log/slog"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/nodelet/nodelet/internal/backoff"
)

// capabilities are what a driver can do; all others are false.
type capabilities map[csipb.NodeServiceCapability_RPC_Type]bool

func (d *driver) can(c csipb.NodeServiceCapability_RPC_Type) bool { return (*d.capabilities.Load())[c] }

// askCapabilities asks the driver what it can do.
func (d *driver) askCapabilities(ctx context.Context) error {
	r, err := call(ctx, d, "NodeGetCapabilities", d.node.NodeGetCapabilities, &csipb.NodeGetCapabilitiesRequest{},
		grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	all := capabilities{}
	for _, c := range r.GetCapabilities() {
		all[c.GetRpc().GetType()] = true
	}
	d.capabilities.Store(&all)
	return nil
}

// followProcess asks the driver again what it can do whenever its connection was lost and is made again, until ctx
// ends: the container of a driver can be replaced behind the same socket without a registration. A call that comes
// before the answer goes by what the earlier process could do.
func (d *driver) followProcess(ctx context.Context, log *slog.Logger) {
	for state := connectivity.Ready; d.conn.WaitForStateChange(ctx, state); {
		switch state = d.conn.GetState(); state {
		case connectivity.Idle:
			d.conn.Connect()
		case connectivity.Ready:
			d.askProcess(ctx, log)
		}
	}
}

// askProcess asks the driver what it can do until it answers, its connection is lost or ctx ends.
func (d *driver) askProcess(ctx context.Context, log *slog.Logger) {
	var failures backoff.Backoff
	for lost := false; !lost; {
		err := d.askCapabilities(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		log.Warn("cannot read the capabilities of a CSI driver again", "driver", d.name, "err", err)
		wait, cancel := context.WithTimeout(ctx, failures.Next(0))
		lost = d.conn.WaitForStateChange(wait, connectivity.Ready)
		cancel()
	}
}
