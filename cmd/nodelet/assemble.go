package main

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/eviction"
	"github.com/nodelet/nodelet/agent/instruments"
	"github.com/nodelet/nodelet/agent/placement"
	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/agent/shutdown"
	"github.com/nodelet/nodelet/cni/manager"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/host/self"
	"github.com/nodelet/nodelet/internal/lifecycle"
	"github.com/nodelet/nodelet/kube/certs"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/kube/server/endpoints"
	"github.com/nodelet/nodelet/metrics/exporter"
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

// parts are what the agent consists of. The functions that assemble calls make them, and need those that were made
// before. What they give to a part to call later may use all parts: nothing runs before all are made.
type parts struct {
	sysmon     *self.Sysmon
	api        *apiServer
	runtime    *containerRuntime
	machine    *machine
	serving    *certs.Serving // nil if the server is off
	objects    *podObjects
	storage    *podStorage
	placement  *placement.Manager
	plugins    *pluginHosts
	mirrors    *pods.Mirrors
	supervisor *agent.Supervisor
	network    *manager.Manager
	evictor    *eviction.Evictor
	shutdown   *shutdown.Shutdown
	podAPI     *podapi.Server
	// nodeChanged are called with each new version of the Node object.
	nodeChanged []func(*corev1.Node)
}

// wake makes the workers of these pods sync again.
func (x *parts) wake(uids []types.UID) { x.supervisor.ObjectsChanged(uids) }

// assemble makes all parts and connects them, and returns the process with the function that runs the pods. Nothing
// runs yet.
func assemble(cfg *config.Config, out output) (p *process, work func(context.Context) error, err error) {
	e := exporter.New(cfg.Node.Name)
	e.AddSettings(cfg.Warnings)
	e.AddFeatures(cfg.Gate)
	p = &process{cfg: cfg, output: out, metrics: e, instruments: instruments.New(e), line: &systemd.Line{}}
	x := &parts{sysmon: self.NewSysmon(p.log)}
	for _, makeParts := range []func(*process, *parts) error{
		newAPIServer,
		newRuntime,
		newMachine,
		newServing,
		newObjects,
		newStorage,
		newPlacement,
		newPlugins,
		newPuller,
		newMirrors,
		newSupervisor,
		newNetwork,
		newGuards,
		newSources,
		newServer,
	} {
		if err := makeParts(p, x); err != nil {
			return nil, nil, err
		}
	}
	p.Start(service(p, x).Run)
	p.Start(func(ctx context.Context) { self.Trim(ctx, x.sysmon) })
	return p, func(ctx context.Context) error { return runPods(ctx, p, x) }, nil
}
