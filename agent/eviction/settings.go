package eviction

import (
	"slices"

	"github.com/nodelet/nodelet/agent/eviction/policy"
	"github.com/nodelet/nodelet/config"
)

// Thresholds returns the thresholds of a configuration.
func Thresholds(c *config.Config) (all []policy.Threshold) {
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
