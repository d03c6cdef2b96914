package main

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/instruments"
	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/cni/manager"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/host/self"
	"github.com/nodelet/nodelet/internal/lifecycle"
	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/kube/server/endpoints"
	"github.com/nodelet/nodelet/metrics/exporter"
	"github.com/nodelet/nodelet/plugins/devices"
	"github.com/nodelet/nodelet/systemd"
)

// process is one run of the agent: what all parts are made with, and what runs until it ends.
type process struct {
	lifecycle.Group
	cfg *config.Config
	output
	metrics     *exporter.Exporter
	instruments *instruments.Metrics
	line        *systemd.Line
}

// output is the log of the process.
type output struct {
	log *slog.Logger
	// verbosity is the level of log.
	verbosity *endpoints.Verbosity
	// health returns an error if the log cannot be written.
	health func() error
}

// links are parts that are made after those that call them. All are set before anything runs.
type links struct {
	supervisor *agent.Supervisor
	network    *manager.Manager
	node       *node.Reporter
	podAPI     *podapi.Server
	devices    *devices.Devices
	// nodeChanged are called with each new version of the Node object.
	nodeChanged []func(*corev1.Node)
}

// wake makes the workers of these pods sync again.
func (l *links) wake(uids []types.UID) { l.supervisor.ObjectsChanged(uids) }

// assemble makes all parts and connects them, and returns the process with the function that runs the pods. Nothing
// runs yet.
func assemble(cfg *config.Config, out output) (p *process, work func(context.Context) error, err error) {
	e := exporter.New(cfg.Node.Name)
	e.AddSettings(cfg.Warnings)
	e.AddFeatures(cfg.Gate)
	p = &process{cfg: cfg, output: out, metrics: e, instruments: instruments.New(e), line: &systemd.Line{}}
	x := parts{sysmon: self.NewSysmon(p.log), links: &links{}}
	if x.api, err = newAPIServer(p, x.links); err != nil {
		return nil, nil, err
	}
	if x.runtime, err = newRuntime(p, x.api, x.links); err != nil {
		return nil, nil, err
	}
	if x.machine, err = newMachine(p, x.api, x.links); err != nil {
		return nil, nil, err
	}
	serving, err := newServing(p, x.api, x.links)
	if err != nil {
		return nil, nil, err
	}
	x.objects = newObjects(p, x.api, x.machine, x.links)
	if x.storage, err = newStorage(p, x.api, x.machine, x.links); err != nil {
		return nil, nil, err
	}
	if x.placement, err = newPlacement(p, x.runtime, x.machine, x.links); err != nil {
		return nil, nil, err
	}
	if x.plugins, err = newPlugins(p, x); err != nil {
		return nil, nil, err
	}
	if err := x.runtime.makePuller(p, x.objects); err != nil {
		return nil, nil, err
	}
	mirrors := newMirrors(p, x.api, x.machine, x.links)
	x.guards = &guards{p: p, machine: x.machine, plugins: x.plugins}
	if err := newSupervisor(p, x, mirrors); err != nil {
		return nil, nil, err
	}
	newNetwork(p, x.api, x.runtime, x.links)
	x.guards.connect(x.api, x.runtime, newUsage(p, x), x.links)
	newSources(p, x.api, x.runtime, x.objects, mirrors, x.links)
	if err := newServer(p, x, serving); err != nil {
		return nil, nil, err
	}
	p.Start(service(p, x.runtime.monitor, x.links).Run)
	p.Start(func(ctx context.Context) { self.Trim(ctx, x.sysmon) })
	return p, func(ctx context.Context) error { return runPods(ctx, p, x) }, nil
}
