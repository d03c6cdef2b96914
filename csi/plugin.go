package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nodelet/nodelet/kube/poddir"
	"github.com/nodelet/nodelet/plugins"
)

// PluginType is the type under which CSI drivers register.
const PluginType = "CSIPlugin"

// Accept registers a CSI driver, if it speaks a version of CSI that this agent knows.
func (c *CSI) Accept(ctx context.Context, p plugins.Info) (dismiss func(context.Context), err error) {
	if err := poddir.CheckName("CSI driver", p.Name); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(p.Versions, isVersion1) {
		return nil, fmt.Errorf("CSI driver %s supports versions %q of the CSI specification; 1.x is needed",
			p.Name, p.Versions)
	}
	d, err := connect(ctx, p.Name, p.Endpoint, &c.cfg)
	if err != nil {
		return nil, err
	}
	following, stop := context.WithCancel(c.background.Context())
	d.stop = stop
	c.background.Begin(func() { d.followProcess(following, c.log) }) // adding the driver may take long
	pods, err := c.drivers.add(ctx, d, c.cfg.Registered)
	if err != nil {
		stop()
		return nil, errors.Join(err, d.conn.Close())
	}
	c.log.Info("CSI driver registered", "driver", d.name, "nodeID", d.info.NodeID)
	if len(pods) > 0 {
		c.cfg.Wake(pods)
	}
	c.unstageUnused()
	c.background.Begin(func() { c.followLimits(following, d) })
	return func(ctx context.Context) { c.dismiss(ctx, d) }, nil
}

// dismiss unregisters a driver. If it served, an earlier registration of its name that is still there serves again.
func (c *CSI) dismiss(ctx context.Context, d *driver) {
	unlock, err := c.drivers.reports.Lock(ctx, d.name)
	if err != nil {
		return // the agent ends
	}
	defer unlock()
	now, changed := c.drivers.remove(d)
	switch {
	case !changed:
		return
	case now == nil:
		c.log.Info("CSI driver unregistered", "driver", d.name)
	default:
		c.log.Info("CSI driver unregistered, an earlier registration serves again", "driver", d.name)
	}
	switch {
	case ctx.Err() != nil:
	case now == nil:
		c.cfg.Gone(ctx, d.name)
	default:
		if err := c.cfg.Registered(ctx, now.info); err != nil {
			c.log.Warn("cannot report what a CSI driver says about the node", "driver", d.name, "err", err)
		}
	}
}

// isVersion1 reports whether a version has the form 1, 1.x or 1.x.y, with or without a v in front.
func isVersion1(v string) bool {
	v = strings.TrimPrefix(v, "v")
	return v == "1" || strings.HasPrefix(v, "1.")
}
