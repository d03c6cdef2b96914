package usage

import (
	"context"
	"math/rand/v2"
	"time"
)

// WatchHealth has the drivers of all volumes asked every one to two minutes, until ctx ends, also while nobody wants
// to know how full they are: a volume that is not well shall be told of.
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
			continue // the agent is about to end
		}
		for i := range pods {
			for _, v := range pods[i].Volumes {
				c.far.read(v)
			}
		}
	}
}
