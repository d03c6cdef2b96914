package usage

import (
	"context"
	"math/rand/v2"
	"time"
)

// WatchHealth asks the drivers of all volumes every one to two minutes until ctx ends, also without requests, so that
// an unhealthy volume is reported.
func (c *Collector) WatchHealth(ctx context.Context) {
	for {
		pause := time.NewTimer(sizeFresh + rand.N(sizeFresh))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
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
