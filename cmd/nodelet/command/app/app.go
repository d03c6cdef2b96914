// Package app has the table of the program's commands. Everything that lists commands reads it: the parser, the usage
// texts, the completion and the reference pages.
//
// It has no commands of its own but version and completion. cmd/nodelet calls it. It has no state, so a crash leaves
// nothing behind.
package app

import (
	"io"
	"runtime"
	"slices"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/cmd/nodelet/command/check"
	"github.com/nodelet/nodelet/cmd/nodelet/command/explain"
	"github.com/nodelet/nodelet/cmd/nodelet/command/pods"
	"github.com/nodelet/nodelet/cmd/nodelet/command/service"
	"github.com/nodelet/nodelet/cmd/nodelet/command/settings"
	"github.com/nodelet/nodelet/cmd/nodelet/command/status"
	"github.com/nodelet/nodelet/cmd/nodelet/command/support"
	"github.com/nodelet/nodelet/config"
)

// Root returns the program with all its commands. The program itself, without a command, is the agent.
func Root() *command.Command {
	root := &command.Command{
		Name:  "nodelet",
		Short: "run the pods of a Kubernetes node, in place of the kubelet",
	}
	root.Sub = slices.Concat(
		[]*command.Command{check.Command(), status.Command(), explain.Command()},
		pods.Commands(),
		[]*command.Command{settings.Command(), service.Command(), support.Command(), completion(), version()},
	)
	root.Usage = func() string { return help(root) }
	return root
}

// Run runs the command that call.Args begin with.
func Run(call command.Call) error { return command.Execute(Root(), call) }

// Help is what --help prints.
func Help() string { return help(Root()) }

func help(root *command.Command) string {
	return "nodelet runs the pods of a Kubernetes node, in place of the kubelet " + config.KubernetesVersion + `.

Usage: nodelet [flags]
       nodelet COMMAND [arguments]

  nodelet --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf
  nodelet --manifests=/etc/kubernetes/manifests          standalone: static pods only, no API server

Commands:
` + command.List(slices.Concat(root.Sub, []*command.Command{{
		Name:  "help",
		Short: "print this text, or the usage of a command: nodelet help COMMAND",
	}})) + config.FlagHelp()
}

func completion() *command.Command {
	return &command.Command{
		Name:    "completion",
		Args:    "[bash|zsh|fish]",
		MaxArgs: 1,
		Values:  command.Shells,
		Short:   "print the completion script for a shell (default bash)",
		Long: `Install the script with:

  bash  nodelet completion bash > /usr/share/bash-completion/completions/nodelet
  zsh   nodelet completion zsh > /usr/share/zsh/vendor-completions/_nodelet
  fish  nodelet completion fish > /usr/share/fish/vendor_completions.d/nodelet.fish

The scripts also complete the name kubelet.`,
		Setup: func(*pflag.FlagSet) command.Run {
			return func(c command.Call) error {
				shell := command.Shells[0]
				if len(c.Args) > 0 {
					shell = c.Args[0]
				}
				text, err := command.Completion(shell)
				if err == nil {
					_, err = io.WriteString(c.Out, text)
				}
				return err
			}
		},
	}
}

// versions is what version prints with -o.
type versions struct {
	Nodelet    string `json:"nodelet"`
	Kubernetes string `json:"kubernetes"`
	Go         string `json:"go"`
	Platform   string `json:"platform"`
}

func version() *command.Command {
	return &command.Command{
		Name:  "version",
		Short: "print the version",
		Setup: func(flags *pflag.FlagSet) command.Run {
			output := command.OutputFlag(flags)
			return func(c command.Call) error {
				if output.Structured() {
					return output.Print(c.Out, versions{
						Nodelet:    config.Version,
						Kubernetes: config.KubernetesVersion,
						Go:         runtime.Version(),
						Platform:   runtime.GOOS + "/" + runtime.GOARCH,
					})
				}
				_, err := io.WriteString(c.Out, config.VersionText())
				return err
			}
		},
	}
}
