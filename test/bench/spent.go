package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nodelet/nodelet/test/testbed"
)

// accounts notes what a load costs.
type accounts struct{ *bench }

// podCosts notes what a pod costs, from its creation to its deletion: when singles runs pods one at a time, and when
// burst runs many at once.
func (a accounts) podCosts(side string, singles, burst func() error) error {
	if err := a.spends(side, "a pod's life", a.o.single, singles); err != nil {
		return err
	}
	return a.spends(side, fmt.Sprintf("a pod's life, %d at once", a.o.burst), a.o.burst, burst)
}

// spends runs work and notes the CPU time that each part of the node and of the control plane spent for each of n pods.
// What no part has, the "rest", is runc, the shims, the kernel, this program, and whatever else runs on the machine.
func (a accounts) spends(side, what string, n int, work func() error) error {
	before, err := a.spent()
	if err != nil {
		return err
	}
	if err := work(); err != nil {
		return err
	}
	after, err := a.spent()
	if err != nil {
		return err
	}
	rest := after[machinePart] - before[machinePart]
	for part, used := range after {
		used -= before[part]
		if part != machinePart {
			rest -= used
		}
		a.note(side, fmt.Sprintf("CPU of %s: %s, ms", what, part), ms(used)/float64(n))
	}
	a.note(side, fmt.Sprintf("CPU of %s: rest, ms", what), ms(rest)/float64(n))
	return nil
}

// machinePart is the sum of all CPU time.
const machinePart = "all of the machine"

// spent returns the CPU time that the machine and the testbed's processes have used so far. The null agent is part of
// this program and has no time of its own.
func (a accounts) spent() (map[string]time.Duration, error) {
	pids, err := testbed.PIDs(a.tb)
	if err != nil {
		return nil, err
	}
	all := map[string]time.Duration{}
	for role, pid := range pids {
		if all[role], err = cpuTime(pid); err != nil {
			return nil, err
		}
	}
	all[machinePart], err = machineTime()
	return all, err
}

// machineTime returns the CPU time of all processes and of the kernel on all CPUs since boot.
func machineTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	// user nice system idle iowait irq softirq steal …; see proc(5)
	fields := strings.Fields(line)[1:]
	const idle, iowait, steal = 3, 4, 7
	var ticks int64
	for i, f := range fields[:steal] {
		if i == idle || i == iowait {
			continue
		}
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the machine's CPU time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}
