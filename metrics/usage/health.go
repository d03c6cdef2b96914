package usage

import (
	"context"
	"math/rand/v2"

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
		for i := range pods {
			for _, v := range pods[i].Volumes {
				c.far.read(v)
			}
		}
	}
}
