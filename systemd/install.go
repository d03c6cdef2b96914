package systemd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	ownUnit     = "nodelet.service"
	kubeletUnit = "kubelet.service"
)

// Installer installs this program as the node's agent under systemd and removes it again. Its methods change files
// below /etc and run systemctl, so they need root; Status does not.
type Installer struct {
	// Program is the absolute path of the program that the units start.
	Program string
	// Out gets a line for each change.
	Out io.Writer
	// root is the root of the file system; only tests set it.
	root string
}

func (i *Installer) dropIn() string {
	return filepath.Join(i.root, "/etc/systemd/system/kubelet.service.d/90-nodelet.conf")
}

func (i *Installer) ownUnitFile() string {
	return filepath.Join(i.root, "/etc/systemd/system", ownUnit)
}

func (i *Installer) envFile() string { return filepath.Join(i.root, "/etc/default/nodelet") }

// Install makes nodelet the node's agent. If the machine has kubelet.service, a drop-in replaces its program and flags
// must be empty. Otherwise, or with separate, nodelet.service is written, enabled and started with flags as its
// arguments.
func (i *Installer) Install(separate bool, flags []string) error {
	if _, err := os.Stat(filepath.Join(i.root, "/run/systemd/system")); err != nil { // see sd_booted(3)
		return errors.New("install nodelet: this machine does not run systemd")
	}
	kubelet, err := properties(kubeletUnit)
	if err != nil {
		return err
	}
	if state := kubelet["LoadState"]; separate || state == "not-found" || state == "masked" {
		return i.installOwn(flags)
	}
	if len(flags) > 0 {
		return fmt.Errorf("nodelet takes over the flags of %s: put %q there, or use --own-unit",
			kubeletUnit, strings.Join(flags, " "))
	}
	return i.replaceKubelet()
}

// replaceKubelet makes nodelet the program of kubelet.service. If nodelet does not start, the kubelet is restored.
func (i *Installer) replaceKubelet() error {
	if _, err := os.Stat(i.dropIn()); err == nil {
		return fmt.Errorf("nodelet has already replaced the kubelet (%s)", i.dropIn())
	}
	unit, err := systemctl("cat", kubeletUnit)
	if err != nil {
		return err
	}
	text, err := TakeOver(unit, i.Program)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(i.dropIn()), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(i.dropIn(), []byte(text), 0o644); err != nil {
		return err
	}
	if err := reloadAndRestart(kubeletUnit); err != nil {
		return errors.Join(fmt.Errorf("nodelet did not start, restoring the kubelet: %w", err), i.Uninstall())
	}
	fmt.Fprintf(i.Out, "nodelet runs as %s (%s); `nodelet systemd uninstall` restores the kubelet\n",
		kubeletUnit, i.dropIn())
	return nil
}

func (i *Installer) installOwn(flags []string) error {
	for _, flag := range flags {
		if strings.ContainsAny(flag, " \t\n\"'\\") {
			return fmt.Errorf("flag %q contains a space or a quote: install without it and add it to %s", flag, i.envFile())
		}
	}
	if err := os.WriteFile(i.ownUnitFile(), []byte(Unit(i.Program)), 0o644); err != nil {
		return err
	}
	if _, err := os.Stat(i.envFile()); errors.Is(err, fs.ErrNotExist) || len(flags) > 0 {
		text := "# The flags of nodelet; see nodelet(8).\nNODELET_ARGS=" + strings.Join(flags, " ") + "\n"
		if err := os.WriteFile(i.envFile(), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", ownUnit}, {"restart", ownUnit}} {
		if _, err := systemctl(args...); err != nil {
			return err
		}
	}
	fmt.Fprintf(i.Out, "nodelet runs as %s with the flags in %s\n", ownUnit, i.envFile())
	return nil
}

// Uninstall undoes Install: it restores the kubelet, or removes nodelet.service.
func (i *Installer) Uninstall() error {
	found := false
	if err := os.Remove(i.dropIn()); err == nil {
		found = true
		_ = os.Remove(filepath.Dir(i.dropIn())) // fails if there are other drop-ins
		if err := reloadAndRestart(kubeletUnit); err != nil {
			return err
		}
		fmt.Fprintln(i.Out, "the kubelet manages the node again; pods kept running")
	}
	if _, err := os.Stat(i.ownUnitFile()); err == nil {
		found = true
		if _, err := systemctl("disable", "--now", ownUnit); err != nil {
			return err
		}
		if err := os.Remove(i.ownUnitFile()); err != nil {
			return err
		}
		if _, err := systemctl("daemon-reload"); err != nil {
			return err
		}
		fmt.Fprintf(i.Out, "%s removed; pods keep running, but no node agent manages them: start one\n", ownUnit)
	}
	if !found {
		return errors.New("nodelet is not installed under systemd by this command")
	}
	return nil
}

// Status writes which agent runs the node, according to the units and their main processes. It is an error if none
// does.
func (i *Installer) Status() error {
	running := false
	for _, unit := range []string{kubeletUnit, ownUnit} {
		p, err := properties(unit)
		if err != nil {
			return err
		}
		if p["LoadState"] == "not-found" {
			continue
		}
		agent := "not running"
		if pid := p["MainPID"]; pid != "" && pid != "0" {
			running = true
			program, err := os.Readlink("/proc/" + pid + "/exe")
			if err != nil {
				program = "unknown program (run as root to see it)"
			}
			agent = fmt.Sprintf("%s (pid %s) since %s, restarted %s times",
				program, pid, p["ActiveEnterTimestamp"], p["NRestarts"])
		}
		fmt.Fprintf(i.Out, "%s: %s (%s): %s\n", unit, p["ActiveState"], p["SubState"], agent)
		if p["StatusText"] != "" {
			fmt.Fprintf(i.Out, "  status: %s\n", p["StatusText"])
		}
	}
	if _, err := os.Stat(i.dropIn()); err == nil {
		fmt.Fprintf(i.Out, "nodelet has replaced the kubelet (%s)\n", i.dropIn())
	}
	if !running {
		return errors.New("no agent runs this node under systemd")
	}
	return nil
}

// properties returns properties of a unit by name. A unit that does not exist has LoadState
// "not-found".
func properties(unit string) (map[string]string, error) {
	text, err := systemctl("show", unit,
		"--property=LoadState,ActiveState,SubState,MainPID,StatusText,ActiveEnterTimestamp,NRestarts")
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

func reloadAndRestart(unit string) error {
	if _, err := systemctl("daemon-reload"); err != nil {
		return err
	}
	_, err := systemctl("restart", unit)
	return err
}

// systemctl runs systemctl and returns its standard output. An error contains what it printed on standard error.
func systemctl(args ...string) (string, error) {
	var out, stderr bytes.Buffer
	c := exec.Command("systemctl", args...)
	c.Stdout, c.Stderr = &out, &stderr
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("systemctl %s: %w: %s",
			strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out.String(), nil
}
