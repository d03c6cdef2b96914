package main

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/eviction"
	"github.com/nodelet/nodelet/agent/eviction/policy"
	"github.com/nodelet/nodelet/agent/shutdown"
	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/kube/status"
	"github.com/nodelet/nodelet/systemd"
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
			Usage:   n.usage,
			Runtime: n.runtime,
			Log:     n.log,
		}),
		Images:   n.collector,
		Reporter: reporter{n},
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

// makeShutdown makes what ends pods before the machine goes down.
func (n *nodelet) makeShutdown() error {
	var groups []shutdown.Group
	for _, p := range n.cfg.Shutdown.ByPriority {
		groups = append(groups, shutdown.Group{Priority: p.Priority, Grace: p.Grace})
	}
	n.shutdown = shutdown.New(shutdown.Config{
		Groups:   groups,
		RootDir:  n.cfg.Paths.Root,
		Pods:     n.supervisor,
		Connect:  func(ctx context.Context) (shutdown.Bus, error) { return systemd.OpenLogind(ctx) },
		Reporter: reporter{n},
		Log:      n.log,
	})
	return nil
}

// reporter publishes what is found and done about the node as a whole.
type reporter struct{ *nodelet }

func (r reporter) SetPressure(p policy.Pressure) { r.node.SetPressure(node.Pressure(p)) }

func (r reporter) SetShutdown(reason error) { r.node.SetShutdown(reason) }

func (r reporter) NodeEvent(eventType, reason, message string) {
	r.nodeEvent(eventType, reason, message)
}

func (r reporter) PodEvent(pod *corev1.Pod, eventType, reason, message string, annotations map[string]string) {
	r.recorder.Annotated(status.PodRef(pod, ""), eventType, reason, message, annotations)
}

func (r reporter) Evicted(signal string) { r.metrics.Agent.Evictions.With(signal).Inc() }
