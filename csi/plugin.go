package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nodelet/nodelet/plugins"
)

// PluginType is how CSI drivers call their type where they register.
const PluginType = "CSIPlugin"

// Accept makes a plugin known that has registered, if it is a driver that this agent can work with.
func (c *CSI) Accept(ctx context.Context, p plugins.Info) (dismiss func(context.Context), err error) {
	if err := checkName("CSI driver", p.Name); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(p.Versions, isVersion1) {
		return nil, fmt.Errorf("CSI driver %s speaks versions %q of the CSI specification; 1.x is needed", p.Name, p.Versions)
	}
	d, err := c.connect(ctx, p.Name, p.Endpoint)
	if err != nil {
		return nil, err
	}
	if c.cfg.Registered != nil {
		if err := c.cfg.Registered(ctx, d.info); err != nil {
			return nil, errors.Join(err, d.conn.Close())
		}
	}
	if err := c.admit(d); err != nil {
		return nil, errors.Join(err, d.conn.Close())
	}
	c.log.Info("CSI driver is registered", "driver", d.name, "node", d.info.NodeID)
	return func(ctx context.Context) { c.dismiss(ctx, d) }, nil
}

// isVersion1: a version of the form 1.x or 1.x.y, with or without a v before it.
func isVersion1(v string) bool {
	v = strings.TrimPrefix(v, "v")
	return v == "1" || strings.HasPrefix(v, "1.")
}
