package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/kube/poddir"
	"github.com/nodelet/nodelet/plugins"
)

// PluginType is the type under which CSI drivers register.
const PluginType = "CSIPlugin"

// reportMax is the longest wait before a registration that serves again is asked once more.
const reportMax = 30 * time.Second

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
	nodeID := d.info.NodeID                                          // from here on mu guards it
	pods, err := c.drivers.add(ctx, d, c.cfg.Registered)
	if err != nil {
		stop()
		return nil, errors.Join(err, d.conn.Close())
	}
	c.log.Info("CSI driver registered", "driver", d.name, "nodeID", nodeID)
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
	case now != nil:
		c.log.Info("CSI driver unregistered, an earlier registration is used again", "driver", d.name)
		c.background.Begin(func() { c.reportAgain(now) })
	default:
		c.log.Info("CSI driver unregistered", "driver", d.name)
		if ctx.Err() == nil {
			c.cfg.Gone(ctx, d.name)
		}
	}
}

// reportAgain reports a registration that serves again, as soon as its process answers and while it serves. Until then
// the driver is reported as gone: a process that was killed has left its socket.
func (c *CSI) reportAgain(d *driver) {
	ctx, done := context.WithCancel(c.background.Context())
	defer done()
	backoff.Repeat(ctx, reportMax, func() error {
		err := c.drivers.refresh(ctx, d, &c.cfg)
		if err == nil || !c.drivers.serves(d) {
			done()
		}
		return err
	}, func(err error, retryIn time.Duration) {
		c.log.Warn("cannot report what a CSI driver says about the node, trying again", "driver", d.name, "err", err,
			"retryIn", retryIn)
		if errors.Is(err, errReport) {
			return // the driver is there
		}
		unlock, err := c.drivers.reports.Lock(ctx, d.name)
		if err != nil {
			return // the agent ends
		}
		defer unlock()
		if c.drivers.doubt(d) {
			c.cfg.Gone(ctx, d.name)
		}
	})
}

// isVersion1 reports whether a version has the form 1, 1.x or 1.x.y, with or without a v in front.
func isVersion1(v string) bool {
	v = strings.TrimPrefix(v, "v")
	return v == "1" || strings.HasPrefix(v, "1.")
}
