package main

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/allocatable"
	"github.com/nodelet/nodelet/agent/execute"
	"github.com/nodelet/nodelet/agent/instruments"
	"github.com/nodelet/nodelet/agent/nodefacts"
	"github.com/nodelet/nodelet/agent/podcgroups"
	"github.com/nodelet/nodelet/host/cgroups"
	"github.com/nodelet/nodelet/host/iptables"
	"github.com/nodelet/nodelet/host/oom"
	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// machine is the node itself: its object in the API server, its cgroups, its facts.
type machine struct {
	node        *node.Reporter
	cgroups     *cgroups.Tree
	facts       *nodefacts.Facts
	allocatable *allocatable.Enforcer
}

// errCgroupV1 is the error on a machine with cgroup v1 that the configuration refuses.
var errCgroupV1 = errors.New("the machine has cgroup v1, and failCgroupV1 is true: " +
	"boot it with cgroup v2, or set failCgroupV1: false")

func newMachine(p *process, api *apiServer, l *links) (m *machine, err error) {
	m = &machine{}
	c := node.Settings(p.cfg)
	c.Log = p.log
	c.Event = api.recorder.NodeEvent
	c.Changed = func(o *corev1.Node) {
		m.facts.Update(o, m.node.Allocatable())
		for _, f := range l.nodeChanged {
			f(o)
		}
	}
	var heartbeats *rest.Config
	if api.identity != nil {
		heartbeats = api.identity.HeartbeatConfig()
	}
	if m.node, err = node.New(c, api.client, heartbeats); err != nil {
		return nil, err
	}
	l.node = m.node
	p.start(m.node.Run)
	settings := nodefacts.Settings(p.cfg)
	if m.cgroups, err = cgroups.New(cgroups.Config{
		Root:    p.cfg.Cgroups.Root,
		Driver:  p.cfg.Cgroups.Driver,
		Protect: settings.MemoryQoS != nil && settings.MemoryQoS.Tiered,
	}); err != nil {
		return nil, err
	}
	if p.cfg.Node.Kernel.RefuseV1 && m.cgroups.Version() == 1 {
		return nil, errCgroupV1
	}
	settings.CgroupV2 = m.cgroups.Version() == 2
	settings.Swap.Controller = m.cgroups.BoundsSwap()
	settings.Capacity = m.node.Capacity()
	m.facts = nodefacts.New(settings, p.cfg.Paths.ResolvConf, p.log)
	m.facts.Update(m.node.Node(), m.node.Allocatable())
	reserved := p.cfg.Reserved
	m.allocatable = allocatable.New(allocatable.Config{
		Tree:      m.cgroups,
		PerQOS:    p.cfg.Cgroups.PerQOS,
		Enforce:   p.cfg.Cgroups.Enforce,
		System:    allocatable.Reservation{Resources: reserved.System, Cgroup: reserved.SystemCgroup},
		Kube:      allocatable.Reservation{Resources: reserved.Kube, Cgroup: reserved.KubeCgroup},
		MemoryQoS: settings.MemoryQoS != nil,
		Capacity:  m.node.Capacity,
		Systemd:   func() bool { return m.facts.Spec().Cgroups.Systemd },
		Event:     api.recorder.NodeEvent,
		Log:       p.log,
	})
	if p.cfg.Node.Kernel.IPTables {
		p.start(iptables.New(p.log).Run)
	}
	p.start(func(ctx context.Context) {
		oom.Watch(ctx, oom.Log, p.log, func(v oom.Victim) {
			api.recorder.NodeEvent(corev1.EventTypeWarning, "SystemOOM", v.Message())
		})
	})
	p.before(func(context.Context) {
		if err := podfs.ShareMounts(p.cfg.Paths.Root); err != nil {
			p.log.Warn("root directory is not a shared mount; mountPropagation (needed by CSI drivers) will not work",
				"err", err)
		}
	})
	return m, nil
}

// podCgroups returns the cgroups of pods, as the supervisor and the steps use them.
func (m *machine) podCgroups(perQOS bool) interface {
	agent.Cgroups
	execute.Cgroups
	instruments.Cgroups
} {
	if !perQOS {
		return podcgroups.None{}
	}
	return podcgroups.New(m.cgroups, m.facts.Spec)
}
