package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/systemd"
)

// command is a sub-command of the program. Its run function returns pflag.ErrHelp if it is asked for help.
type command struct {
	name  string
	usage string
	run   func(args []string, out io.Writer) error
}

// commandTable returns all commands except help; config.HelpText lists them.
func commandTable() []command {
	return []command{
		{name: "explain", usage: explainUsage, run: explain},
		{name: "systemd", usage: systemdUsage, run: systemdCommand},
		{name: "completion", usage: completionUsage, run: completion},
		{name: "version", usage: versionUsage, run: printVersion},
	}
}

const (
	completionUsage = "usage: nodelet completion [bash]\n\nPrints the completion script for bash.\n"
	versionUsage    = "usage: nodelet version\n\nPrints the version.\n"
)

// runCommand runs the command name, or prints its usage to out. An unknown command is a usage error.
func runCommand(name string, args []string, out io.Writer) error {
	if name == "help" {
		if len(args) == 0 || isHelp(args[0]) {
			_, err := io.WriteString(out, config.HelpText())
			return err
		}
		name, args = args[0], []string{"--help"}
	}
	names := []string{"help"}
	for _, c := range commandTable() {
		if c.name != name {
			names = append(names, c.name)
			continue
		}
		err := c.run(args, out)
		if errors.Is(err, pflag.ErrHelp) {
			_, err = io.WriteString(out, c.usage)
		}
		return err
	}
	return usageErrorf("unknown command %q%s (see nodelet --help)", name, config.DidYouMean(name, names))
}

func usageErrorf(format string, args ...any) error {
	return &config.UsageError{Err: fmt.Errorf(format, args...)}
}

func isHelp(arg string) bool { return arg == "-h" || arg == "--help" }

// parse reads the flags of a command and returns its other arguments.
func parse(flags *pflag.FlagSet, args []string) ([]string, error) {
	flags.Usage = func() {} // runCommand prints the usage
	err := flags.Parse(args)
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		err = usageErrorf("%s: %w (see nodelet %s --help)", flags.Name(), err, flags.Name())
	}
	return flags.Args(), err
}

// noFlags parses the arguments of a command that has no flags and takes at most the given arguments.
func noFlags(name string, args []string, allowed ...string) error {
	rest, err := parse(pflag.NewFlagSet(name, pflag.ContinueOnError), args)
	if err == nil && len(rest) > 0 && (len(rest) > len(allowed) || rest[0] != allowed[0]) {
		err = usageErrorf("%s: unexpected argument %q (see nodelet %s --help)", name, rest[0], name)
	}
	return err
}

func printVersion(args []string, out io.Writer) error {
	if err := noFlags("version", args); err != nil {
		return err
	}
	_, err := io.WriteString(out, config.VersionText())
	return err
}

const systemdUsage = `usage: nodelet systemd install [--own-unit] [FLAG...]
       nodelet systemd uninstall | status
       nodelet systemd unit [--kubelet] [PROGRAM]

install    makes nodelet the agent of this node. If the machine has kubelet.service, nodelet replaces the kubelet
           in it and keeps its flags and files; pods keep running. Otherwise, or with --own-unit, it creates
           nodelet.service, with the FLAGs as its arguments.
uninstall  undoes install: the kubelet manages the node again; pods keep running.
status     shows which agent manages the node.
unit       prints nodelet.service, or with --kubelet a kubelet.service whose program is nodelet.
`

// systemdCommand installs nodelet under systemd, uninstalls it, or shows its status.
func systemdCommand(args []string, out io.Writer) error {
	verbs := map[string]func(*systemd.Installer, []string, io.Writer) error{
		"install":   systemdInstall,
		"uninstall": systemdUninstall,
		"status":    systemdStatus,
		"unit":      systemdUnit,
	}
	if len(args) == 0 {
		return usageErrorf("systemd: missing command: install, uninstall, status or unit (see nodelet systemd --help)")
	}
	if slices.ContainsFunc(args, isHelp) {
		return pflag.ErrHelp
	}
	run, ok := verbs[args[0]]
	if !ok {
		near := config.DidYouMean(args[0], slices.Collect(maps.Keys(verbs)))
		return usageErrorf("unknown command %q%s (see nodelet systemd --help)", "systemd "+args[0], near)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return run(&systemd.Installer{Program: program, Out: out}, args[1:], out)
}

// systemdInstall refuses flags that nodelet does not know, because the service would never start with them.
func systemdInstall(i *systemd.Installer, args []string, _ io.Writer) error {
	separate := len(args) > 0 && args[0] == "--own-unit"
	if separate {
		args = args[1:]
	}
	var usage *config.UsageError
	var text *config.TextRequest
	if _, err := config.Load(args); errors.As(err, &usage) {
		return usage
	} else if errors.As(err, &text) {
		return usageErrorf("systemd install: %s is not for a service", strings.Join(args, " "))
	}
	if err := needRoot("install"); err != nil {
		return err
	}
	return i.Install(separate, args)
}

func systemdUninstall(i *systemd.Installer, args []string, _ io.Writer) error {
	if err := noFlags("systemd uninstall", args); err != nil {
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

func systemdStatus(i *systemd.Installer, args []string, _ io.Writer) error {
	if err := noFlags("systemd status", args); err != nil {
		return err
	}
	return i.Status()
}

// systemdUnit prints a unit file for the program that args name, or for this one.
func systemdUnit(i *systemd.Installer, args []string, out io.Writer) error {
	flags := pflag.NewFlagSet("systemd unit", pflag.ContinueOnError)
	kubelet := flags.Bool("kubelet", false, "")
	rest, err := parse(flags, args)
	switch {
	case err != nil:
		return err
	case len(rest) > 1:
		return usageErrorf("systemd unit: unexpected argument %q (see nodelet systemd --help)", rest[1])
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
