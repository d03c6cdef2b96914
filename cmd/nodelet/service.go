package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/nodelet/nodelet/cri/monitor"
	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/systemd"
)

// aliveLimit bounds the health check for the watchdog.
const aliveLimit = 10 * time.Second

// service is what systemd is told about the agent.
func service(p *process, m *monitor.Monitor, l *links) systemd.Service {
	return systemd.Service{
		Runtime:  p.cfg.Runtime.Endpoint,
		Work:     "runs the pods of node " + p.cfg.Node.Name,
		Answered: m.Answered(),
		Usable:   m.Usable(),
		Healthy: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, aliveLimit)
			defer cancel()
			return errors.Join(m.Health(), l.supervisor.Alive(ctx))
		},
		Log: p.log,
	}
}

// syncLoopLimit bounds how long /healthz waits for the supervisor.
const syncLoopLimit = 5 * time.Second

// healthz checks the agent itself. It leaves the API server out: a restart of the agent would not bring it back.
func healthz(p *process, x parts, server func() error) http.Handler {
	return node.HealthzHandler([]node.Check{
		{Name: "ping", Run: func() error { return nil }},
		{Name: "log", Run: p.health},
		{Name: "syncloop", Run: func() error {
			ctx, cancel := context.WithTimeout(context.Background(), syncLoopLimit)
			defer cancel()
			return x.links.supervisor.Alive(ctx)
		}},
		{Name: "runtime", Run: x.runtime.monitor.Health},
		{Name: "server", Run: server},
	}, p.metrics.AddHealthChecks())
}
