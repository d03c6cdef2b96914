package plan

import (
	"slices"

	"github.com/nodelet/nodelet/agent/podstate"
)

// losesDevices reports whether in this run the machine reboots instead of the agent being killed, and the pod's devices
// are missing for a while after that. The choice is as that of shortOfDisk.
func (l *simRun) losesDevices() bool { return l.seed%15 == 13 }

// loseDevices ends all sandboxes of a machine that reboots.
func (l *simRun) loseDevices() {
	if !l.losesDevices() {
		return
	}
	for _, box := range slices.Clone(l.sandboxes) {
		l.killSandbox(&box)
	}
	l.desired.DevicesMissing = "their plugin has not registered again"
	l.devicesAt = l.now.Add(l.within(2 * l.every))
	l.note("the machine reboots, devices are back at %s", l.devicesAt)
}

// findDevices brings the pod's devices back.
func (l *simRun) findDevices() {
	if l.desired.DevicesMissing != "" && !l.now.Before(l.devicesAt) {
		l.note("the devices are back")
		l.desired.DevicesMissing = ""
	}
}

// devicesFirst checks that nothing of a pod is made while its devices are missing.
func (ru *rules) devicesFirst(s podstate.Step) {
	switch s.(type) {
	case podstate.Prepare, podstate.PrepareClaims, podstate.Mount, podstate.CreateSandbox, podstate.CreateContainer:
		if ru.l.desired.DevicesMissing != "" {
			ru.breaks("%s while the devices of the pod are missing", s)
		}
	}
}
