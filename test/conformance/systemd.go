package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/godbus/dbus/v5"
)

// How systemd is called on the bus, and the unit of the container runtime: containerd.service.
const (
	systemdName   = "org.freedesktop.systemd1"
	systemdObject = dbus.ObjectPath("/org/freedesktop/systemd1")
	runtimeUnit   = systemdObject + "/unit/containerd_2eservice"
)

// busEnv is the environment variable with the address of the system bus.
const busEnv = "DBUS_SYSTEM_BUS_ADDRESS"

// busConfig is the configuration of a bus that allows everything, with the path of its socket.
const busConfig = `<busconfig><listen>unix:path=%s</listen><auth>EXTERNAL</auth><policy context="default">
<allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>
</policy></busconfig>`

// startBus starts a bus and returns its address. The bus ends with the context; wait waits for that and cleans up.
func startBus(ctx context.Context) (address string, wait func(), err error) {
	dir, err := os.MkdirTemp("", "bus") // the path of a socket must be short
	if err != nil {
		return "", nil, err
	}
	config := filepath.Join(dir, "bus.conf")
	text := fmt.Sprintf(busConfig, filepath.Join(dir, "socket"))
	cmd := exec.CommandContext(ctx, "dbus-daemon", "--nofork", "--print-address", "--config-file="+config)
	out, pipeErr := cmd.StdoutPipe()
	err = errors.Join(pipeErr, os.WriteFile(config, []byte(text), 0o644))
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	wait = func() { _ = errors.Join(cmd.Wait(), os.RemoveAll(dir)) }
	address, err = bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(address), wait, err
}

// manager stands in for systemd on a bus, on which the suite stops and starts the container runtime.
type manager struct {
	bus         *dbus.Conn
	start, stop func() error
	jobs        atomic.Uint32
}

// serve makes the manager known on a bus until the context ends.
func (m *manager) serve(ctx context.Context, address string) (err error) {
	if m.bus, err = dbus.Connect(address, dbus.WithContext(ctx)); err != nil {
		return err
	}
	if err := m.bus.Export(m, systemdObject, systemdName+".Manager"); err != nil {
		return err
	}
	_, err = m.bus.RequestName(systemdName, dbus.NameFlagDoNotQueue)
	return err
}

// GetUnitByPID returns the only unit.
func (m *manager) GetUnitByPID(uint32) (dbus.ObjectPath, *dbus.Error) { return runtimeUnit, nil }

// StartUnit starts the container runtime.
func (m *manager) StartUnit(unit, _ string) (job dbus.ObjectPath, _ *dbus.Error) {
	return m.begin(unit, m.start), nil
}

// StopUnit stops the container runtime.
func (m *manager) StopUnit(unit, _ string) (job dbus.ObjectPath, _ *dbus.Error) {
	return m.begin(unit, m.stop), nil
}

// begin begins a job. A signal tells how it has ended.
func (m *manager) begin(unit string, do func() error) dbus.ObjectPath {
	id := m.jobs.Add(1)
	job := dbus.ObjectPath(fmt.Sprintf("%s/job/%d", systemdObject, id))
	go func() {
		result := "done"
		if err := do(); err != nil {
			result = "failed"
			fmt.Fprintln(os.Stderr, "conformance:", err)
		}
		_ = m.bus.Emit(systemdObject, systemdName+".Manager.JobRemoved", id, job, unit, result)
	}()
	return job
}
