package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nodelet/nodelet/agent"
)

// explainPods returns what the pods are waiting for, or an error as long as the runtime has not answered.
func (n *nodelet) explainPods(ctx context.Context) ([]*agent.Explanation, error) {
	select {
	case <-n.monitor.Answered():
		return n.supervisor.Explain(ctx)
	default:
		since := time.Since(n.monitor.Created()).Round(time.Second)
		return nil, fmt.Errorf("waiting for the container runtime at %s (%s so far); no pod is managed until it answers",
			n.cfg.Runtime.Endpoint, since)
	}
}
