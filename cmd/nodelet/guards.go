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
	"github.com/nodelet/nodelet/metrics/usage"
	"github.com/nodelet/nodelet/systemd"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// guards refuse and end pods to protect the node. evictor and shutdown are made after the supervisor, which asks them.
type guards struct {
	p        *process
	machine  *machine
	plugins  *pluginHosts
	evictor  *eviction.Evictor
	shutdown *shutdown.Shutdown
}

// admit decides whether a pod that is new on the node can run beside others.
func (g *guards) admit(pod *corev1.Pod, others []*corev1.Pod) admission.Decision {
	return admission.Admit(pod, admission.Node{
		Object:        g.machine.node.Node(),
		Allocatable:   g.machine.node.Allocatable(),
		Device:        g.plugins.devices.Known,
		Volume:        podfs.Supported,
		UnsafeSysctls: g.p.cfg.Kubelet.AllowedUnsafeSysctls,
		AppArmor:      g.machine.facts.AppArmor(),
	}, others)
}

// connect makes what ends pods when the node runs short or goes down.
func (g *guards) connect(api *apiServer, r *containerRuntime, u *usage.Collector, l *links) {
	p := g.p
	report := reporter{g.machine.node, api.recorder, p.instruments}
	e := eviction.Settings(p.cfg)
	e.Pods = l.supervisor
	e.Node = eviction.NewMachine(eviction.MachineConfig{
		RootDir: p.cfg.Paths.Root,
		Cgroups: g.machine.cgroups,
		Usage:   u,
		Runtime: r.client,
		Log:     p.log,
	})
	e.Images = r.collector
	e.Reporter = report
	e.Log = p.log
	g.evictor = eviction.New(e)
	g.shutdown = shutdown.New(shutdown.Config{
		Groups:   shutdown.Groups(p.cfg),
		RootDir:  p.cfg.Paths.Root,
		Pods:     l.supervisor,
		Connect:  func(ctx context.Context) (shutdown.Bus, error) { return systemd.OpenLogind(ctx) },
		Reporter: report,
		Log:      p.log,
	})
	p.metrics.AddShutdown(g.shutdown.Times)
	p.Before(g.shutdown.Resume)
	p.Start(g.shutdown.Run)
}

// reporter publishes what is found and done about the node as a whole.
type reporter struct {
	*node.Reporter
	*status.Recorder
	*instruments.Metrics
}
