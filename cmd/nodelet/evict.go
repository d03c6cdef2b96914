package main

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/eviction"
	"github.com/nodelet/nodelet/agent/eviction/policy"
	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/kube/node"
)

// makeCollector makes what removes images that no container uses.
func (n *nodelet) makeCollector() {
	i := n.cfg.Images
	n.collector = images.NewCollector(n.runtime, images.CollectorOptions{
		HighPercent: i.GCHighPercent,
		LowPercent:  i.GCLowPercent,
		MinimumAge:  i.MinimumAge,
		MaximumAge:  i.MaximumAge,
		Event:       n.nodeEvent,
		Removed:     n.monitor.ImagesChanged,
		Log:         n.log,
	})
}

// makeEvictor makes what ends pods when the node runs short.
func (n *nodelet) makeEvictor() error {
	e := n.cfg.Eviction
	n.evictor = eviction.New(eviction.Config{
		Thresholds:    n.thresholds(),
		Transition:    e.TransitionPeriod,
		MaxGrace:      e.MaxPodGrace,
		EnforceLimits: n.cfg.Node.LocalStorageIsolation,
		Pods:          n.supervisor,
		Node: eviction.NewMachine(eviction.MachineConfig{
			RootDir: n.cfg.Paths.Root,
			Cgroups: n.cgroups,
			Usage:   n.measured.stats,
			Runtime: n.runtime,
			Log:     n.log,
		}),
		Images:   n.collector,
		Reporter: evictions{n},
		Log:      n.log,
	})
	return nil
}

// thresholds are those of the configuration.
func (n *nodelet) thresholds() (all []policy.Threshold) {
	for _, t := range n.cfg.Eviction.Thresholds {
		all = append(all, policy.Threshold{
			Signal:  t.Signal,
			Value:   policy.Amount{Quantity: t.Quantity, Percentage: t.Percentage},
			Grace:   t.GracePeriod,
			Reclaim: policy.Amount(t.MinReclaim),
		})
	}
	if slices.Contains(n.cfg.Cgroups.Enforce, "pods") {
		all = policy.WithAllocatable(all)
	}
	return all
}

// evictions publishes what the evictor finds and does.
type evictions struct{ *nodelet }

func (e evictions) SetPressure(p policy.Pressure) { e.node.SetPressure(node.Pressure(p)) }

func (e evictions) NodeEvent(eventType, reason, message string) {
	e.nodeEvent(eventType, reason, message)
}

func (e evictions) PodEvent(pod *corev1.Pod, eventType, reason, message string) {
	e.podEvent(pod, eventType, reason, message)
}

func (e evictions) Evicted(signal string) { e.measured.agent.Evictions.With(signal).Inc() }
