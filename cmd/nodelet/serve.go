package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/systemd"
)

// healthz checks the agent itself. It leaves the API server out: a restart of the agent would not bring it back.
func (n *nodelet) healthz() http.Handler {
	return node.HealthzHandler([]node.Check{
		{Name: "ping", Run: func() error { return nil }},
		{Name: "runtime", Run: n.monitor.Health},
		{Name: "server", Run: func() error {
			if n.server == nil {
				return nil // enableServer is false
			}
			return n.server.Health()
		}},
	})
}

// networkWait bounds the wait for the runtime's network at startup. The network may need pods that only this agent can
// run, and kubeadm waits for the unit before it installs them.
const networkWait = 10 * time.Second

// aliveLimit bounds the health check for the watchdog.
const aliveLimit = 10 * time.Second

// notify reports to systemd that the agent is ready when the runtime can run pods, and then that it is alive while it
// is healthy.
func (n *nodelet) notify(ctx context.Context) {
	if !n.awaitUsable(ctx) {
		return
	}
	interval, err := systemd.WatchdogInterval()
	if err == nil {
		err = systemd.Notify(systemd.Ready)
	}
	if err != nil {
		n.log.Warn("cannot notify systemd", "err", err)
	}
	systemd.Watch(ctx, interval, func() error { return n.alive(ctx) },
		func(err error) { n.log.Error("health check failed; not notifying the systemd watchdog", "err", err) })
	<-ctx.Done()
	_ = systemd.Notify(systemd.Stopping)
}

// awaitUsable waits for a runtime that can run pods, at most networkWait for its network. It reports whether ctx has
// not ended.
func (n *nodelet) awaitUsable(ctx context.Context) bool {
	_ = systemd.Notify(systemd.Status("waiting for the container runtime at " + n.cfg.Runtime.Endpoint))
	select {
	case <-ctx.Done():
		return false
	case <-n.monitor.Answered():
	}
	_ = systemd.Notify(systemd.Status("waiting for the container runtime's network"))
	line := "runs the pods of node " + n.cfg.Node.Name
	select {
	case <-ctx.Done():
		return false
	case <-n.monitor.Usable():
	case <-time.After(networkWait):
		line += "; the container runtime's network was not ready at the start"
	}
	_ = systemd.Notify(systemd.Status(line))
	return true
}

// alive is the health check for the watchdog.
func (n *nodelet) alive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, aliveLimit)
	defer cancel()
	return errors.Join(n.monitor.Health(), n.supervisor.Alive(ctx))
}
