package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	systemd "github.com/coreos/go-systemd/v22/dbus"

	"github.com/nodelet/nodelet/test/programs"
)

// TestManager stops and starts a unit over a bus, with the client that the suite uses.
func TestManager(t *testing.T) {
	programs.Find(t, "dbus-daemon")
	ctx, cancel := context.WithCancel(context.Background())
	address, wait, err := startBus(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); wait() })
	var stopped atomic.Bool
	m := &manager{
		start: func() error { return errors.New("it does not start") },
		stop:  func() error { stopped.Store(true); return nil },
	}
	if err := m.serve(ctx, address); err != nil {
		t.Fatal(err)
	}
	t.Setenv(busEnv, address)
	bus, err := systemd.NewSystemConnectionContext(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	unit, err := bus.GetUnitNameByPID(ctx, 1)
	if err != nil || unit != "containerd.service" {
		t.Fatalf("got unit %q (%v), want containerd.service", unit, err)
	}
	job := make(chan string)
	if _, err := bus.StopUnitContext(ctx, unit, "replace", job); err != nil {
		t.Fatal(err)
	}
	if got := <-job; got != "done" || !stopped.Load() {
		t.Errorf("the job to stop: got %q, stopped %t; want done, true", got, stopped.Load())
	}
	if _, err := bus.StartUnitContext(ctx, unit, "replace", job); err != nil {
		t.Fatal(err)
	}
	if got := <-job; got != "failed" {
		t.Errorf("a job that fails: got %q, want failed", got)
	}
}
