package usage

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/nodelet/nodelet/internal/backoff"
)

// WatchHealth asks the drivers of all volumes every one to two minutes until ctx ends, also without requests, so that
// an unhealthy volume is reported.
func (c *Collector) WatchHealth(ctx context.Context) {
	for backoff.Sleep(ctx, sizeFresh+rand.N(sizeFresh)) {
		pods, err := c.cfg.Pods(ctx)
		if err != nil {
			continue // the agent is stopping
		}
		all := make([]podUse, len(pods))
		for i := range pods {
			all[i].Pod = pods[i]
		}
		c.refreshVolumes(all)
	}
}

// refreshVolumes measures the volumes of these pods again, as faraway.refresh does.
func (c *Collector) refreshVolumes(pods []podUse) {
	var all []Volume
	for i := range pods {
		all = slices.AppendSeq(all, maps.Values(pods[i].Volumes))
	}
	c.far.refresh(all)
}
