// Package placementtest makes the placement of a node on which all containers share all CPUs and all memory.
//
// It owns nothing. Tests of packages that ask placement, but are not about it, call it.
package placementtest

import (
	"time"

	"github.com/nodelet/nodelet/agent/placement"
	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/placement/policy"
	"github.com/nodelet/nodelet/config"
)

// Off returns a Manager with all policies off and metrics that count nothing.
func Off() *placement.Manager {
	m, err := placement.New(placement.Config{
		Root: "/nonexistent",
		Settings: placement.Settings{
			CPUPolicy:      config.CPUPolicyNone,
			MemoryPolicy:   config.MemoryPolicyNone,
			TopologyPolicy: numa.PolicyNone,
			Gate:           func(string) bool { return false },
		},
		Metrics: uncounted{},
	})
	if err != nil {
		panic(err) // there are no files, and no policy that could be wrong
	}
	return m
}

type uncounted struct{}

func (uncounted) Decided(time.Duration, bool, policy.Count) {}

func (uncounted) CPUs(int, int, map[int]int) {}
