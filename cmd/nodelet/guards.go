package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/admission"
	"github.com/nodelet/nodelet/agent/eviction"
	"github.com/nodelet/nodelet/agent/instruments"
	"github.com/nodelet/nodelet/agent/shutdown"
	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/kube/status"
	"github.com/nodelet/nodelet/systemd"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// admit decides whether a pod that is new on the node can run beside others.
func admit(p *process, x *parts, pod *corev1.Pod, others []*corev1.Pod) admission.Decision {
	return admission.Admit(pod, admission.Node{
		Object:        x.machine.node.Node(),
		Allocatable:   x.machine.node.Allocatable(),
		Device:        x.plugins.devices.Known,
		Volume:        podfs.Supported,
		UnsafeSysctls: p.cfg.Kubelet.AllowedUnsafeSysctls,
		AppArmor:      x.machine.facts.AppArmor(),
	}, others)
}

// newGuards makes what ends pods when the node runs short or goes down.
func newGuards(p *process, x *parts) error {
	report := reporter{x.machine.node, x.api.recorder, p.instruments}
	e := eviction.Settings(p.cfg)
	e.Pods = x.supervisor
	e.Node = eviction.NewMachine(eviction.MachineConfig{
		RootDir: p.cfg.Paths.Root,
		Cgroups: x.machine.cgroups,
		Usage:   newUsage(p, x),
		Runtime: x.runtime.client,
		Log:     p.log,
	})
	e.Images = x.runtime.collector
	e.Reporter = report
	e.Log = p.log
	x.evictor = eviction.New(e)
	x.shutdown = shutdown.New(shutdown.Config{
		Groups:   shutdown.Groups(p.cfg),
		RootDir:  p.cfg.Paths.Root,
		Pods:     x.supervisor,
		Connect:  func(ctx context.Context) (shutdown.Bus, error) { return systemd.OpenLogind(ctx) },
		Reporter: report,
		Unsent:   x.api.status.Unsent,
		Log:      p.log,
	})
	p.metrics.AddShutdown(x.shutdown.Times)
	p.Before(x.shutdown.Resume)
	p.Start(x.shutdown.Run)
	return nil
}

// reporter publishes what is found and done about the node as a whole.
type reporter struct {
	*node.Reporter
	*status.Recorder
	*instruments.Metrics
}
