package main

import (
	"context"
	"log/slog"
	"sync"

	"github.com/nodelet/nodelet/agent/instruments"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/kube/server/endpoints"
	"github.com/nodelet/nodelet/metrics/exporter"
)

// process is one run of the agent: what all parts are made with, and what runs until it ends.
type process struct {
	cfg *config.Config
	output
	metrics *exporter.Exporter
	meter   *instruments.Metrics

	first []func(context.Context)
	runs  []func(context.Context)
	ends  []func()
}

// output is the log of the process.
type output struct {
	log *slog.Logger
	// verbosity is the level of log.
	verbosity *endpoints.Verbosity
	// health returns an error if nobody takes the log.
	health func() error
}

func newProcess(cfg *config.Config, out output) *process {
	e := exporter.New(cfg.Node.Name)
	e.AddSettings(cfg.Warnings)
	e.AddFeatures(cfg.Gate)
	return &process{cfg: cfg, output: out, metrics: e, meter: instruments.New(e)}
}

// before calls f before anything runs.
func (p *process) before(f func(context.Context)) { p.first = append(p.first, f) }

// start runs f until its context ends.
func (p *process) start(f func(context.Context)) { p.runs = append(p.runs, f) }

// atEnd calls f when all that runs has returned.
func (p *process) atEnd(f func()) { p.ends = append(p.ends, f) }

// run runs all parts until ctx ends, or until work returns an error.
func (p *process) run(ctx context.Context, work func(context.Context) error) (failure error) {
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	for _, f := range p.first {
		f(ctx)
	}
	var all sync.WaitGroup
	for _, f := range p.runs {
		all.Go(func() { f(ctx) })
	}
	all.Go(func() {
		if failure = work(ctx); failure != nil {
			giveUp()
		}
	})
	<-ctx.Done()
	all.Wait()
	for _, f := range p.ends {
		f()
	}
	return failure
}
