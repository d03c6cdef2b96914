package eviction

import (
	"slices"

	"github.com/nodelet/nodelet/agent/eviction/policy"
	"github.com/nodelet/nodelet/config"
)

// Settings returns what an Evictor needs of the configuration. The caller adds the rest.
func Settings(c *config.Config) Config {
	return Config{
		Thresholds:    thresholds(c),
		Transition:    c.Eviction.TransitionPeriod,
		MaxGrace:      c.Eviction.MaxPodGrace,
		EnforceLimits: c.Node.LocalStorageIsolation,
	}
}

func thresholds(c *config.Config) (all []policy.Threshold) {
	for _, t := range c.Eviction.Thresholds {
		all = append(all, policy.Threshold{
			Signal:  t.Signal,
			Value:   policy.Amount{Quantity: t.Quantity, Percentage: t.Percentage},
			Grace:   t.GracePeriod,
			Reclaim: policy.Amount(t.MinReclaim),
		})
	}
	if slices.Contains(c.Cgroups.Enforce, "pods") {
		all = policy.WithAllocatable(all)
	}
	return all
}
