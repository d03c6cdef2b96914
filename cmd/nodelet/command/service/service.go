// Package service is the subcommand `nodelet systemd`: it makes nodelet the agent of the node under systemd, undoes
// that, and shows which agent manages the node.
//
// It owns the command line; package systemd owns the units and changes them. It never touches pods. What a crash leaves
// behind is described in package systemd.
package service

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/systemd"
)

const usage = `usage: nodelet systemd install [--own-unit] [FLAG...]
       nodelet systemd uninstall | status
       nodelet systemd unit [--kubelet] [PROGRAM]

install    makes nodelet the agent of this node. If the machine has kubelet.service, nodelet replaces the kubelet
           in it and keeps its flags and files; pods keep running. Otherwise, or with --own-unit, it creates
           nodelet.service, with the FLAGs as its arguments.
uninstall  undoes install: the kubelet manages the node again; pods keep running.
status     shows which agent manages the node.
unit       prints nodelet.service, or with --kubelet a kubelet.service whose program is nodelet.
`

// verbs returns the commands below `nodelet systemd`.
func verbs() map[string]func(*systemd.Installer, []string, io.Writer) error {
	return map[string]func(*systemd.Installer, []string, io.Writer) error{
		"install":   install,
		"uninstall": uninstall,
		"status":    status,
		"unit":      unit,
	}
}

// Command is `nodelet systemd`.
func Command() command.Command {
	return command.Command{
		Name:  "systemd",
		Usage: usage,
		Words: slices.Sorted(maps.Keys(verbs())),
		Run:   run,
	}
}

// run installs nodelet under systemd, uninstalls it, or shows its status.
func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return command.UsageErrorf(
			"systemd: missing command: install, uninstall, status or unit (see nodelet systemd --help)")
	}
	if slices.ContainsFunc(args, command.IsHelp) {
		return pflag.ErrHelp
	}
	verb, ok := verbs()[args[0]]
	if !ok {
		near := config.DidYouMean(args[0], slices.Collect(maps.Keys(verbs())))
		return command.UsageErrorf("unknown command %q%s (see nodelet systemd --help)", "systemd "+args[0], near)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return verb(&systemd.Installer{Program: program, Out: out}, args[1:], out)
}

// install refuses flags that nodelet does not know, because the service would never start with them.
func install(i *systemd.Installer, args []string, _ io.Writer) error {
	separate := len(args) > 0 && args[0] == "--own-unit"
	if separate {
		args = args[1:]
	}
	var wrong *config.UsageError
	var text *config.TextRequest
	if _, err := config.Load(args); errors.As(err, &wrong) {
		return wrong
	} else if errors.As(err, &text) {
		return command.UsageErrorf("systemd install: %s is not for a service", strings.Join(args, " "))
	}
	if err := needRoot("install"); err != nil {
		return err
	}
	return i.Install(separate, args)
}

func uninstall(i *systemd.Installer, args []string, _ io.Writer) error {
	if err := command.NoFlags("systemd uninstall", args); err != nil {
		return err
	}
	if err := needRoot("uninstall"); err != nil {
		return err
	}
	return i.Uninstall()
}

func needRoot(verb string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("nodelet systemd %s changes units of the system: run it as root", verb)
	}
	return nil
}

func status(i *systemd.Installer, args []string, _ io.Writer) error {
	if err := command.NoFlags("systemd status", args); err != nil {
		return err
	}
	return i.Status()
}

// unit prints a unit file for the program that args name, or for this one.
func unit(i *systemd.Installer, args []string, out io.Writer) error {
	flags := pflag.NewFlagSet("systemd unit", pflag.ContinueOnError)
	kubelet := flags.Bool("kubelet", false, "")
	rest, err := command.Parse(flags, args)
	switch {
	case err != nil:
		return err
	case len(rest) > 1:
		return command.UsageErrorf("systemd unit: unexpected argument %q (see nodelet systemd --help)", rest[1])
	case len(rest) == 1:
		i.Program = rest[0]
	}
	text := systemd.Unit
	if *kubelet {
		text = systemd.KubeletUnit
	}
	_, err = io.WriteString(out, text(i.Program))
	return err
}
