package eviction

import (
	"slices"
	"time"

	"github.com/nodelet/nodelet/agent/eviction/policy"
	"github.com/nodelet/nodelet/config"
)

// Settings returns what an Evictor needs of the configuration. The caller adds the rest.
func Settings(c *config.Config) Config {
	k, thresholds := &c.Kubelet, policy.WithContainerFS(c.Thresholds())
	if slices.Contains(k.EnforceNodeAllocatable, "pods") {
		thresholds = policy.WithAllocatable(thresholds)
	}
	return Config{
		Thresholds:    thresholds,
		Transition:    k.EvictionPressureTransitionPeriod.Duration,
		MaxGrace:      time.Duration(k.EvictionMaxPodGracePeriod) * time.Second,
		EnforceLimits: *k.LocalStorageCapacityIsolation,
	}
}
