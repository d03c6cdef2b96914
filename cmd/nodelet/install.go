package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nodelet/nodelet/systemd"
)

const (
	ownUnit     = "nodelet.service"
	kubeletUnit = "kubelet.service"
	unitDir     = "/etc/systemd/system"
	takeOver    = unitDir + "/" + kubeletUnit + ".d/90-nodelet.conf"
	ownUnitFile = unitDir + "/" + ownUnit
	envFile     = "/etc/default/nodelet"
)

const systemdUsage = `usage: nodelet systemd install [--own-unit] [FLAG...] | uninstall | status | unit [--kubelet] [PROGRAM]

install    runs the node with nodelet from now on. Where the machine has kubelet.service, nodelet takes the kubelet's place in
           it with the same flags and files, and the pods keep running. Without one, or with --own-unit, it makes
           nodelet.service, with the FLAGs that follow as its arguments.
uninstall  takes that back: the kubelet runs the node again, with the pods running on.
status     says which agent runs the node.
unit       prints the text of nodelet.service, or with --kubelet that of a kubelet.service whose program is nodelet.
`

// systemdCommand is the sub-command that puts nodelet under systemd and takes it out again.
func systemdCommand(args []string, out io.Writer) error {
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" {
		fmt.Fprint(out, systemdUsage)
		return flag.ErrHelp
	}
	if args[0] == "unit" {
		return printUnit(args[1:], out)
	}
	if args[0] != "status" && os.Geteuid() != 0 {
		return fmt.Errorf("nodelet systemd %s changes units of the system: run it as root", args[0])
	}
	switch args[0] {
	case "install":
		return install(args[1:], out)
	case "uninstall":
		return uninstall(out)
	case "status":
		return showStatus(out)
	}
	return fmt.Errorf("unknown command %q\n%s", "systemd "+args[0], systemdUsage)
}

// printUnit prints a unit file for the program that is named, or for this one.
func printUnit(args []string, out io.Writer) error {
	text := systemd.Unit
	if len(args) > 0 && args[0] == "--kubelet" {
		text, args = systemd.KubeletUnit, args[1:]
	}
	program, err := os.Executable()
	if len(args) > 0 {
		program, err = args[0], nil
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(out, text(program))
	return err
}

// systemctl runs systemctl; its own words are part of the error.
func systemctl(args ...string) (string, error) {
	var out, words bytes.Buffer
	c := exec.Command("systemctl", args...)
	c.Stdout, c.Stderr = &out, &words
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(words.String()))
	}
	return out.String(), nil
}

func install(args []string, out io.Writer) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	own := len(args) > 0 && args[0] == "--own-unit"
	if own {
		args = args[1:]
	}
	shown, err := systemctl("cat", kubeletUnit)
	if err != nil || own {
		return installOwn(program, args, out)
	}
	if len(args) > 0 {
		return fmt.Errorf("nodelet takes the flags of %s over; put %q there, or use --own-unit", kubeletUnit, strings.Join(args, " "))
	}
	return installOver(shown, program, out)
}

// installOver puts nodelet into kubelet.service. Where it does not start, the kubelet gets its place back.
func installOver(shown, program string, out io.Writer) error {
	if _, err := os.Stat(takeOver); err == nil {
		return fmt.Errorf("nodelet has the kubelet's place already (%s)", takeOver)
	}
	text, err := systemd.TakeOver(shown, program)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(takeOver), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(takeOver, []byte(text), 0o644); err != nil {
		return err
	}
	if err := reloadAndRestart(kubeletUnit); err != nil {
		return errors.Join(fmt.Errorf("nodelet did not start, the kubelet gets its place back: %w", err), uninstall(out))
	}
	fmt.Fprintf(out, "nodelet runs the node as %s (%s); `nodelet systemd uninstall` brings the kubelet back\n", kubeletUnit, takeOver)
	return nil
}

func installOwn(program string, args []string, out io.Writer) error {
	if err := os.WriteFile(ownUnitFile, []byte(systemd.Unit(program)), 0o644); err != nil {
		return err
	}
	if _, err := os.Stat(envFile); errors.Is(err, fs.ErrNotExist) || len(args) > 0 {
		text := "# The flags of nodelet; see nodelet(8).\nNODELET_ARGS=" + strings.Join(args, " ") + "\n"
		if err := os.WriteFile(envFile, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if _, err := systemctl("daemon-reload"); err != nil {
		return err
	}
	if _, err := systemctl("enable", ownUnit); err != nil {
		return err
	}
	if _, err := systemctl("restart", ownUnit); err != nil {
		return err
	}
	fmt.Fprintf(out, "nodelet runs the node as %s with the flags in %s\n", ownUnit, envFile)
	return nil
}

func reloadAndRestart(unit string) error {
	if _, err := systemctl("daemon-reload"); err != nil {
		return err
	}
	_, err := systemctl("restart", unit)
	return err
}

func uninstall(out io.Writer) error {
	found := false
	if err := os.Remove(takeOver); err == nil {
		found = true
		_ = os.Remove(filepath.Dir(takeOver)) // unless others have put something there
		if err := reloadAndRestart(kubeletUnit); err != nil {
			return err
		}
		fmt.Fprintln(out, "the kubelet runs the node again; pods kept running")
	}
	if _, err := os.Stat(ownUnitFile); err == nil {
		found = true
		if _, err := systemctl("disable", "--now", ownUnit); err != nil {
			return err
		}
		if err := os.Remove(ownUnitFile); err != nil {
			return err
		}
		if _, err := systemctl("daemon-reload"); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s is gone; pods kept running, and nobody looks after them now\n", ownUnit)
	}
	if !found {
		return errors.New("nodelet is not installed under systemd by this command")
	}
	return nil
}

// showStatus says which agent runs the node, by the units and their main processes.
func showStatus(out io.Writer) error {
	running := false
	for _, unit := range []string{kubeletUnit, ownUnit} {
		text, err := systemctl("show", unit, "--property=LoadState,ActiveState,SubState,MainPID,StatusText,ActiveEnterTimestamp,NRestarts")
		if err != nil {
			return err
		}
		p := map[string]string{}
		for line := range strings.Lines(text) {
			k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
			p[k] = v
		}
		if p["LoadState"] == "not-found" {
			continue
		}
		who := "nobody"
		if pid := p["MainPID"]; pid != "" && pid != "0" {
			running = true
			program, err := os.Readlink("/proc/" + pid + "/exe")
			if err != nil {
				program = "a program that this user may not see"
			}
			who = fmt.Sprintf("%s (pid %s) since %s, restarted %s times", program, pid, p["ActiveEnterTimestamp"], p["NRestarts"])
		}
		fmt.Fprintf(out, "%s: %s (%s): %s\n", unit, p["ActiveState"], p["SubState"], who)
		if p["StatusText"] != "" {
			fmt.Fprintf(out, "  it says: %s\n", p["StatusText"])
		}
	}
	if _, err := os.Stat(takeOver); err == nil {
		fmt.Fprintf(out, "nodelet has the kubelet's place (%s)\n", takeOver)
	}
	if !running {
		return errors.New("no agent runs this node under systemd")
	}
	return nil
}
