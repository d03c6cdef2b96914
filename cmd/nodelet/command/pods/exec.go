package pods

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/kube/server"
)

func execute() *command.Command {
	return &command.Command{
		Name:    "exec",
		Args:    "POD -- COMMAND [ARGUMENT]...",
		MaxArgs: -1,
		Short:   "run a command in a container, without an API server",
		Exit:    "Exit code: that of the command.",
		Setup: func(flags *pflag.FlagSet) command.Run {
			rootDir := command.RootDirFlag(flags)
			namespace, container := containerFlags(flags)
			stdin := flags.BoolP("stdin", "i", false, "pass standard input to the command")
			tty := flags.BoolP("tty", "t", false, "give the command a terminal")
			return func(c command.Call) error {
				if len(c.Args) < 2 {
					return command.Usagef("exec: want a pod and a command: nodelet exec POD -- COMMAND")
				}
				client := podapi.NewClient(*rootDir)
				in, err := target(c.Context, client, *namespace, c.Args[0], *container)
				if err != nil {
					return err
				}
				at, err := client.Exec(c.Context, in, c.Args[1:], *stdin, *tty)
				if err != nil {
					return err
				}
				return stream(c, at, *stdin, *tty)
			}
		},
	}
}

// stream connects the streams of the command with those of this process.
func stream(c command.Call, at string, stdin, tty bool) error {
	target, err := url.Parse(at)
	if err != nil {
		return err
	}
	executor, err := server.NewExecutor(target)
	if err != nil {
		return err
	}
	streams := remotecommand.StreamOptions{Stdout: c.Out, Stderr: c.Err, Tty: tty}
	if stdin {
		streams.Stdin = c.In
	}
	if tty && command.IsTerminal(c.In) {
		fd := int(c.In.(*os.File).Fd())
		if stdin { // else Ctrl-C has to end this program, because the command does not get it
			before, err := term.MakeRaw(fd)
			if err != nil {
				return fmt.Errorf("prepare the terminal: %w", err)
			}
			defer term.Restore(fd, before)
		}
		streams.TerminalSizeQueue = newTerminal(fd)
	}
	err = executor.StreamWithContext(c.Context, streams)
	var exit exec.CodeExitError
	switch {
	case err == nil:
		return nil
	case c.Context.Err() != nil:
		return errors.New("interrupted")
	case errors.As(err, &exit):
		return &command.ExitError{Code: exit.Code}
	}
	return fmt.Errorf("run the command over the container runtime's streams: %w", err)
}

// terminal is the terminal of this process. It implements remotecommand.TerminalSizeQueue.
type terminal struct {
	fd      int
	changed chan os.Signal
}

func newTerminal(fd int) terminal {
	t := terminal{fd, make(chan os.Signal, 1)}
	t.changed <- unix.SIGWINCH // the first size counts as a change
	signal.Notify(t.changed, unix.SIGWINCH)
	return t
}

// Next returns the size of the terminal when it has changed.
func (t terminal) Next() *remotecommand.TerminalSize {
	<-t.changed
	width, height, err := term.GetSize(t.fd)
	if err != nil {
		return nil
	}
	return &remotecommand.TerminalSize{Width: uint16(width), Height: uint16(height)}
}
