package main

import (
	"context"
	"fmt"
	"io"
	"time"
)

// scrapeRounds is how often all endpoints are read to get at the CPU time of one: the kernel counts that in 10 ms.
const scrapeRounds = 10

// endpoints are the HTTP endpoints of a node that Prometheus and other clients read.
var endpoints = []string{"metrics", "metrics/cadvisor", "metrics/resource", "metrics/probes", "stats/summary"}

// scrapes measures the agent's CPU time for reading all endpoints once. What the agent uses anyway, atRest of a CPU,
// is left out.
func (b *resting) scrapes(ctx context.Context, side, load string, atRest float64) error {
	if _, err := b.scrape(ctx); err != nil { // the first may fill caches
		return err
	}
	before, err := cpuTime(b.node.AgentPID())
	if err != nil {
		return err
	}
	began, size := time.Now(), int64(0)
	for range scrapeRounds {
		if size, err = b.scrape(ctx); err != nil {
			return err
		}
	}
	took := time.Since(began)
	after, err := cpuTime(b.node.AgentPID())
	if err != nil {
		return err
	}
	spent := after - before - time.Duration(atRest*float64(took))
	b.note(side, fmt.Sprintf("CPU of one scrape of all endpoints, %s, ms", load), ms(spent)/scrapeRounds)
	b.note(side, fmt.Sprintf("all endpoints, %s, KiB", load), float64(size)/1024)
	return nil
}

// scrape reads all endpoints once, as Prometheus does compressed on the wire, and gives their size.
func (b *resting) scrape(ctx context.Context) (size int64, err error) {
	for _, e := range endpoints {
		body, err := b.api.Core.Get().AbsPath("/api/v1/nodes/" + b.node.Name + "/proxy/" + e).Stream(ctx)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", e, err)
		}
		n, err := io.Copy(io.Discard, body)
		_ = body.Close()
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", e, err)
		}
		size += n
	}
	return size, nil
}
