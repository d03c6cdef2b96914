package systemd

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// networkWait bounds the wait for the runtime's network at startup. The network may need pods that only this agent can
// run, and kubeadm waits for the unit before it installs them.
const networkWait = 10 * time.Second

// aliveLimit bounds the health check for the watchdog.
const aliveLimit = 10 * time.Second

// Service reports the agent's state to systemd: what it waits for, that it is ready, and that it is alive.
type Service struct {
	// Runtime is the endpoint of the container runtime, and Work what the agent does once it is ready, for `systemctl
	// status`.
	Runtime, Work string
	// Answered is closed when the runtime has answered, Usable when its network was ready as well.
	Answered, Usable <-chan struct{}
	// Healthy returns an error if the agent does not work; then the watchdog of systemd is not notified.
	Healthy func(context.Context) error
	Line    *Line
	Log     *slog.Logger
}

// Run reports that the agent is ready when the runtime can run pods, and then that it is alive while it is healthy,
// until ctx ends.
func (s Service) Run(ctx context.Context) {
	if !s.awaitUsable(ctx) {
		return
	}
	interval, err := watchdogInterval()
	if err == nil {
		err = Notify(daemon.SdNotifyReady)
	}
	if err != nil {
		s.Log.Warn("cannot notify systemd", "err", err)
	}
	watch(ctx, interval, func() error { return s.checkHealth(ctx) },
		func(err error) { s.Log.Error("health check failed; not notifying the systemd watchdog", "err", err) })
	<-ctx.Done()
	_ = Notify(daemon.SdNotifyStopping)
}

func (s Service) checkHealth(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, aliveLimit)
	defer cancel()
	return s.Healthy(ctx)
}

// awaitUsable waits for a runtime that can run pods, at most networkWait for its network. It reports whether ctx has
// not ended.
func (s Service) awaitUsable(ctx context.Context) bool {
	s.Line.SetState("waiting for the container runtime at " + s.Runtime)
	select {
	case <-ctx.Done():
		return false
	case <-s.Answered:
	}
	s.Line.SetState("waiting for the container runtime's network")
	line := s.Work
	select {
	case <-ctx.Done():
		return false
	case <-s.Usable:
	case <-time.After(networkWait):
		line += "; the container runtime's network was not ready at the start"
	}
	s.Line.SetState(line)
	return true
}
