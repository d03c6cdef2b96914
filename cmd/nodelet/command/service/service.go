// Package service is the command group `nodelet systemd`: it makes nodelet the agent of the node under systemd, undoes
// that, and shows which agent manages the node.
//
// It owns the command line; package systemd owns the units and changes them. It never touches pods. What a crash leaves
// behind is described in package systemd.
package service

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/systemd"
)

// Command is `nodelet systemd`.
func Command() *command.Command {
	return &command.Command{
		Name:  "systemd",
		Short: "make nodelet the agent of this node under systemd, undo that, show which agent manages the node",
		Sub:   []*command.Command{install(), uninstall(), status(), unit()},
	}
}

func install() *command.Command {
	return &command.Command{
		Name:       "install",
		Args:       "[FLAG]...",
		AgentFlags: true,
		Short:      "make nodelet the agent of this node",
		Long: `If the machine has kubelet.service, nodelet replaces the kubelet in it and keeps its flags and files; pods keep
running. Otherwise, or with --own-unit, it creates nodelet.service with the FLAGs as its arguments.`,
		Setup: func(flags *pflag.FlagSet) command.Run {
			separate := flags.Bool("own-unit", false, "create nodelet.service, even if the machine has kubelet.service")
			return func(c command.Call) error {
				if err := checkFlags(c.Args); err != nil {
					return err
				}
				i, err := installer(c)
				if err == nil {
					err = needRoot("install")
				}
				if err == nil {
					err = i.Install(*separate, c.Args)
				}
				return err
			}
		},
	}
}

// checkFlags refuses flags that nodelet does not know, because the service would never start with them.
func checkFlags(args []string) error {
	var wrong *config.UsageError
	var text *config.TextRequest
	if _, err := config.Load(args); errors.As(err, &wrong) {
		return wrong
	} else if errors.As(err, &text) {
		return command.Usagef("systemd install: %s is not for a service", strings.Join(args, " "))
	}
	return nil
}

func uninstall() *command.Command {
	return &command.Command{
		Name:  "uninstall",
		Short: "undo install: the kubelet manages the node again; pods keep running",
		Setup: func(*pflag.FlagSet) command.Run {
			return func(c command.Call) error {
				i, err := installer(c)
				if err == nil {
					err = needRoot("uninstall")
				}
				if err == nil {
					err = i.Uninstall()
				}
				return err
			}
		},
	}
}

func status() *command.Command {
	return &command.Command{
		Name:  "status",
		Short: "show which agent manages the node",
		Setup: func(*pflag.FlagSet) command.Run {
			return func(c command.Call) error {
				i, err := installer(c)
				if err == nil {
					err = i.Status()
				}
				return err
			}
		},
	}
}

func unit() *command.Command {
	return &command.Command{
		Name:    "unit",
		Args:    "[PROGRAM]",
		MaxArgs: 1,
		Short:   "print nodelet.service for the program",
		Setup: func(flags *pflag.FlagSet) command.Run {
			kubelet := flags.Bool("kubelet", false, "print a kubelet.service whose program is nodelet")
			return func(c command.Call) error {
				program, err := os.Executable()
				if len(c.Args) > 0 {
					program, err = c.Args[0], nil
				}
				text := systemd.Unit
				if *kubelet {
					text = systemd.KubeletUnit
				}
				if err == nil {
					_, err = io.WriteString(c.Out, text(program))
				}
				return err
			}
		},
	}
}

func needRoot(verb string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("nodelet systemd %s changes units of the system: run it as root", verb)
	}
	return nil
}

func installer(c command.Call) (*systemd.Installer, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return &systemd.Installer{Program: program, Out: c.Out}, nil
}
