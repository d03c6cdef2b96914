package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/systemd"
)

// stuckCall is how long a call to the runtime may go unanswered before the agent counts as unwell.
const stuckCall = 5 * time.Minute

// serveHealthz answers at the healthz port until ctx ends.
func (n *nodelet) serveHealthz(ctx context.Context) {
	if n.cfg.Healthz.Port == 0 {
		return
	}
	addr := netip.AddrPortFrom(n.cfg.Healthz.Addr, n.cfg.Healthz.Port).String()
	mux := http.NewServeMux()
	healthz := node.HealthzHandler(n.checks())
	mux.Handle("/healthz", healthz)
	mux.Handle("/healthz/", healthz)
	server := &http.Server{Addr: addr, Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second,
		MaxHeaderBytes: 8 << 10, BaseContext: func(net.Listener) context.Context { return ctx }}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		n.log.Error("healthz is not served; set healthzPort to a free one, or to 0", "addr", addr, "err", err)
	}
}

// checks leave the API server out: while it is away the node goes on, and a restart of the agent would not bring it
// back.
func (n *nodelet) checks() []node.Check {
	return []node.Check{
		{Name: "ping", Run: func() error { return nil }},
		{Name: "runtime", Run: n.runtimeHealth},
	}
}

// runtimeHealth is an error while a call to the runtime goes unanswered for too long; it says which, and on what.
func (n *nodelet) runtimeHealth() error {
	now := time.Now()
	for _, c := range n.runtime.InFlight() {
		// Pulls, stops with a long grace and execs may take their time.
		long := c.Verb == "PullImage" || c.Verb == "StopContainer" || c.Verb == "ExecSync" || c.Verb == "GetContainerEvents"
		if took := now.Sub(c.Since); took > stuckCall && !long {
			return fmt.Errorf("%s of %s has not been answered for %s", c.Verb, c.Object, took.Round(time.Second))
		}
	}
	return nil
}

// networkWait is how long the agent counts as starting while the runtime's network is not ready. It may never be before
// the agent runs the pods that set it up, and kubeadm waits for the unit before it installs them.
const networkWait = 10 * time.Second

// aliveLimit is how long the supervisor may be busy with one thing before the watchdog is not fed.
const aliveLimit = 10 * time.Second

// notify tells systemd that the agent is ready once the runtime can run pods, then that it is alive as long as it is
// well.
func (n *nodelet) notify(ctx context.Context) {
	if !n.awaitUsable(ctx) {
		return
	}
	interval, err := systemd.WatchdogInterval()
	if err == nil {
		err = systemd.Notify(systemd.Ready)
	}
	if err != nil {
		n.log.Warn("cannot tell systemd how the agent is", "err", err)
	}
	systemd.Watch(ctx, interval, func() error { return n.alive(ctx) },
		func(err error) { n.log.Error("not well, systemd is not told otherwise", "err", err) })
	<-ctx.Done()
	_ = systemd.Notify(systemd.Stopping)
}

// awaitUsable waits for a runtime that can run pods; one without a network can run those of the host's, after a while.
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

// alive is the health that the watchdog looks at.
func (n *nodelet) alive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, aliveLimit)
	defer cancel()
	return errors.Join(n.runtimeHealth(), n.supervisor.Alive(ctx))
}
