package main

import (
	"context"
	"os"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/allocatable"
	"github.com/nodelet/nodelet/agent/execute"
	"github.com/nodelet/nodelet/agent/instruments"
	"github.com/nodelet/nodelet/agent/nodefacts"
	"github.com/nodelet/nodelet/agent/placement"
	"github.com/nodelet/nodelet/agent/podcgroups"
	"github.com/nodelet/nodelet/host/cgroups"
	"github.com/nodelet/nodelet/host/iptables"
	"github.com/nodelet/nodelet/host/oom"
	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/metrics/usage"
	"github.com/nodelet/nodelet/plugins/devices"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// machine is the node itself: its object in the API server, its cgroups, its facts.
type machine struct {
	node       *node.Reporter
	cgroups    *cgroups.Tree
	podCgroups interface {
		agent.Cgroups
		execute.Cgroups
		instruments.Cgroups
	}
	facts       *nodefacts.Facts
	allocatable *allocatable.Enforcer
	systemOOMs  atomic.Uint64 // since the agent has started
}

func newMachine(p *process, x *parts) (err error) {
	m, api := &machine{podCgroups: podcgroups.None{}}, x.api
	c := node.Settings(p.cfg)
	c.Log = p.log
	c.Event = api.recorder.NodeEvent
	c.Changed = func(o *corev1.Node) {
		if m.facts.Update(o, m.node.Allocatable()) {
			x.supervisor.NodeMoved()
		}
		for _, f := range x.nodeChanged {
			f(o)
		}
	}
	var heartbeats *rest.Config
	var renew func() error
	if !api.standalone() {
		heartbeats, renew = api.identity.Heartbeats()
	}
	if m.node, err = node.New(c, api.client.Core, heartbeats, renew); err != nil {
		return err
	}
	p.Start(m.node.Run)
	k, settings := &p.cfg.Kubelet, nodefacts.Settings(p.cfg)
	m.cgroups, err = cgroups.New(cgroups.Config{
		Root:     k.CgroupRoot,
		Driver:   k.CgroupDriver,
		Protect:  settings.MemoryQoS != nil && settings.MemoryQoS.Tiered,
		RefuseV1: p.cfg.RefusesCgroupV1(),
	})
	if err != nil {
		return err
	}
	settings.CgroupV2 = m.cgroups.Version() == 2
	settings.Swap.Controller = m.cgroups.BoundsSwap()
	settings.Capacity = m.node.Capacity()
	m.facts = nodefacts.New(settings, *k.ResolverConfig, p.log)
	m.facts.Update(m.node.Node(), m.node.Allocatable())
	if *k.CgroupsPerQOS {
		m.podCgroups = podcgroups.New(m.cgroups, m.facts.Spec, p.instruments.CgroupChanged)
	}
	enforce := allocatable.Settings(p.cfg)
	enforce.Tree = m.cgroups
	enforce.Capacity = m.node.Capacity
	enforce.Systemd = func() bool { return m.facts.Spec().Cgroups.Systemd }
	enforce.Event = api.recorder.NodeEvent
	enforce.Log = p.log
	m.allocatable = allocatable.New(enforce)
	if *k.MakeIPTablesUtilChains {
		p.Start(iptables.New(p.log).Run)
	}
	p.Start(func(ctx context.Context) {
		oom.Watch(ctx, oom.Log, p.log, func(v oom.Victim) {
			m.systemOOMs.Add(1)
			api.recorder.NodeEvent(corev1.EventTypeWarning, "SystemOOM", v.Message())
		})
	})
	p.Before(func(context.Context) { podfs.ShareMounts(p.cfg.Paths.Root, p.log) })
	x.machine = m
	return nil
}

// newPlacement sets up the CPU, memory and topology managers.
func newPlacement(p *process, x *parts) (err error) {
	x.placement, err = placement.Open(os.DirFS("/"), placement.Config{
		Root:        p.cfg.Paths.Root,
		Settings:    placement.SettingsOf(p.cfg),
		Reservation: x.machine.node.Reservation(),
		Runtime:     x.runtime.client,
		WithEnded:   func(ctx context.Context, f func(func(types.UID) bool)) { x.supervisor.WithEnded(ctx, f) },
		Devices:     func(pod *corev1.Pod) devices.Views { return x.plugins.devices.Views(pod) },
		Metrics:     instruments.NewPlacement(p.metrics),
		Log:         p.log,
	})
	if err != nil {
		return err
	}
	x.machine.facts.UseCPUs(x.placement.HasCPUs)
	p.Start(x.placement.Run)
	return nil
}

// newUsage makes what measures the node and its pods.
func newUsage(p *process, x *parts) *usage.Collector {
	c := usage.Settings(p.cfg)
	c.Hierarchy = usage.NewHierarchy(x.machine.cgroups.Mounts())
	c.Runtime = x.runtime.client
	c.WalkLayers = func() bool { return x.runtime.monitor.RuntimeName() == "cri-o" }
	c.SystemOOMs = x.machine.systemOOMs.Load
	c.Pods = func(ctx context.Context) ([]usage.Pod, error) {
		return instruments.UsagePods(ctx, x.supervisor, x.storage.volumes, x.machine.podCgroups)
	}
	c.Log = p.log
	if *p.cfg.Kubelet.CgroupsPerQOS {
		c.PodsCgroup, c.ClassCgroups = x.machine.cgroups.PodsCgroup(), x.machine.cgroups.ClassCgroups()
	}
	u := usage.New(c)
	p.metrics.AddUsage(u)
	if p.cfg.Gate("CSIVolumeHealth") {
		p.Start(u.WatchHealth)
	}
	return u
}
