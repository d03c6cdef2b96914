package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"
)

// LimitsExceeded makes the agent ask a driver again how many volumes the node can have: it could not attach one more.
// It returns at once, and does nothing for a driver of which the limits do not change.
func (c *CSI) LimitsExceeded(name string) {
	d, done := c.drivers.now(name)
	defer done()
	if d != nil {
		d.exceeded.Set()
	}
}

// followLimits asks a driver again after each period, and when it could not attach one more volume (KEP-4876), until
// ctx ends.
func (c *CSI) followLimits(ctx context.Context, d *driver) {
	var period time.Duration
	var due <-chan time.Time
	for {
		now, changed, err := c.cfg.Limits(ctx, d.name)
		if err != nil {
			return // ctx has ended
		}
		if now != period {
			period, due = now, nil
			if period > 0 {
				due = time.After(period)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
			continue
		case <-d.exceeded:
			if period == 0 {
				continue
			}
		case <-due:
			due = time.After(period)
		}
		if err := c.drivers.refresh(ctx, d, &c.cfg); err != nil && ctx.Err() == nil {
			c.log.Warn("cannot update how many volumes the node can have", "driver", d.name, "err", err)
		}
	}
}

// errReport is in the chain of errors of refresh that are not about the driver: it has answered.
var errReport = errors.New("report its answer")

// refresh asks a driver about the node, and passes its answer on if that is news.
func (a *drivers) refresh(ctx context.Context, d *driver, cfg *Config) error {
	info, err := d.nodeInfo(ctx)
	if err != nil {
		return err
	}
	unlock, err := a.reports.Lock(ctx, d.name) // not after it was reported as gone
	if err != nil {
		return err
	}
	defer unlock()
	if !a.serves(d) {
		return nil
	}
	a.mu.Lock()
	old := d.info
	a.mu.Unlock()
	if info.NodeID == old.NodeID && info.MaxVolumes == old.MaxVolumes && maps.Equal(info.Topology, old.Topology) {
		return nil
	}
	if err := cfg.Registered(ctx, info); err != nil {
		return fmt.Errorf("%w: %w", errReport, err)
	}
	a.mu.Lock()
	d.info = info
	a.mu.Unlock()
	cfg.Log.Info("CSI driver reports other information about the node", "driver", d.name, "maxVolumes", info.MaxVolumes)
	return nil
}
