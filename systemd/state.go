package systemd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// rootOnly reports whether only root can change a file.
func rootOnly(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && s.Uid == 0 && info.Mode().Perm()&0o022 == 0
}

// Agent is the agent that a unit runs.
type Agent struct {
	Unit string `json:"unit"`
	// State is systemd's state of the unit, such as "active (running)".
	State string `json:"state"`
	// PID is the main process; empty if none runs. Program is its executable file; empty if this user may not see it.
	PID     string `json:"pid,omitempty"`
	Program string `json:"program,omitempty"`
	// Args is the command line without the name of the program.
	Args []string `json:"-"`
	// Dir is the working directory, to which relative paths in Args refer; that of services if this user may not see it.
	Dir string `json:"-"`
	// Since is when the unit became active, Restarts how often systemd has restarted it.
	Since    string `json:"since,omitempty"`
	Restarts string `json:"restarts,omitempty"`
	// Status is the line that the agent has sent to systemd.
	Status string `json:"status,omitempty"`
}

// Agents returns the agents of the units kubelet.service and nodelet.service, if they exist.
func (i *Installer) Agents(ctx context.Context) ([]Agent, error) {
	var all []Agent
	for _, unit := range []string{kubeletUnit, ownUnit} {
		p, err := properties(ctx, unit)
		if err != nil {
			return nil, err
		}
		if p["LoadState"] == "not-found" {
			continue
		}
		a := Agent{Unit: unit, State: fmt.Sprintf("%s (%s)", p["ActiveState"], p["SubState"]), Status: p["StatusText"]}
		if pid := p["MainPID"]; pid != "" && pid != "0" {
			a.PID = pid
			a.Since, a.Restarts = p["ActiveEnterTimestamp"], p["NRestarts"]
			a.Program, _ = os.Readlink(filepath.Join("/proc", pid, "exe"))
			if a.Dir, err = os.Readlink(filepath.Join("/proc", pid, "cwd")); err != nil {
				a.Dir = "/"
			}
			if line, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline")); err == nil && len(line) > 0 {
				a.Args = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")[1:]
			}
		}
		all = append(all, a)
	}
	return all, nil
}

// Running returns the agent that runs now, as one of these units if any are named; nil if none does.
func (i *Installer) Running(ctx context.Context, units ...string) (*Agent, error) {
	agents, err := i.Agents(ctx)
	if err != nil {
		return nil, err
	}
	for _, a := range agents {
		if a.PID != "" && (len(units) == 0 || slices.Contains(units, a.Unit)) {
			return &a, nil
		}
	}
	return nil, nil
}

// OwnStarts reports whether nodelet.service runs, or starts at boot: it stops kubelet.service then.
func (i *Installer) OwnStarts(ctx context.Context) (bool, error) {
	p, err := properties(ctx, ownUnit)
	return runs(p["ActiveState"]) || strings.HasPrefix(p["UnitFileState"], "enabled"), err
}

// replaced reports whether nodelet has replaced the kubelet in its unit.
func (i *Installer) replaced() bool {
	_, err := os.Stat(i.dropIn())
	return err == nil
}

// Status writes which agent runs the node, according to the units and their main processes. It is an error if none
// does.
func (i *Installer) Status(ctx context.Context) error {
	if err := i.Booted(); err != nil {
		return err
	}
	agents, err := i.Agents(ctx)
	if err != nil {
		return err
	}
	running := false
	for _, a := range agents {
		agent := "not running"
		if a.PID != "" {
			running = true
			program := a.Program
			if program == "" {
				program = "unknown program (run as root to see it)"
			}
			agent = fmt.Sprintf("%s (pid %s) since %s, restarted %s times", program, a.PID, a.Since, a.Restarts)
		}
		fmt.Fprintf(i.Out, "%s: %s: %s\n", a.Unit, a.State, agent)
		if a.Status != "" {
			fmt.Fprintf(i.Out, "  status: %s\n", a.Status)
		}
	}
	if i.replaced() {
		fmt.Fprintf(i.Out, "nodelet has replaced the kubelet (%s)\n", i.dropIn())
	}
	if !running {
		return errors.New("no agent runs this node under systemd: start one with systemctl start kubelet or nodelet")
	}
	return nil
}

// properties returns properties of a unit by name. A unit that does not exist has LoadState "not-found".
func properties(ctx context.Context, unit string) (map[string]string, error) {
	text, err := systemctl(ctx, "show", unit,
		"--property=LoadState,UnitFileState,ActiveState,SubState,MainPID,StatusText,ActiveEnterTimestamp,NRestarts,Job")
	if err != nil {
		return nil, err
	}
	p := map[string]string{}
	for line := range strings.Lines(text) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		p[k] = v
	}
	return p, nil
}

// runs reports whether systemd runs a unit or tries to, by its ActiveState: between two attempts to start a program
// that crashes it is activating.
func runs(activeState string) bool {
	return activeState == "active" || activeState == "activating" || activeState == "reloading"
}

// systemctl runs systemctl and returns its standard output. An error contains what it printed on standard error.
func systemctl(ctx context.Context, args ...string) (string, error) {
	var out, stderr bytes.Buffer
	c := exec.CommandContext(ctx, "systemctl", args...)
	c.Stdout, c.Stderr = &out, &stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C in the terminal does not reach it
	err := c.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", errors.New("systemctl is not in PATH: is this a machine with systemd?")
	case err != nil:
		return out.String(), fmt.Errorf("systemctl %s: %w: %s",
			strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out.String(), nil
}

// startable reports whether a unit can be started, by its LoadState: it exists, and no administrator has masked it.
func startable(loadState string) bool {
	return loadState != "not-found" && loadState != "masked"
}
