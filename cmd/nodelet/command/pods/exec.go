package pods

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/cmd/nodelet/command"
)

func execute() *command.Command {
	return &command.Command{
		Name:    "exec",
		Args:    "POD -- COMMAND [ARGUMENT]...",
		MaxArgs: -1,
		Short:   "run a command in a container, without an API server",
		Exit:    "Exit code: that of the command.",
		Setup: func(flags *pflag.FlagSet) command.Run {
			flags.SetInterspersed(false)
			rootDir := command.RootDirFlag(flags)
			namespace := flags.StringP("namespace", "n", "", "`NAMESPACE` of the pod")
			container := flags.StringP("container", "c", "", "`NAME` of the container (default: the first)")
			stdin := flags.BoolP("stdin", "i", false, "pass standard input to the command")
			tty := flags.BoolP("tty", "t", false, "give the command a terminal")
			return func(c command.Call) error {
				if len(c.Args) > 1 && c.Args[1] == "--" {
					c.Args = append(c.Args[:1:1], c.Args[2:]...)
				}
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
	conn, err := dial(c.Context, at)
	if err != nil {
		return fmt.Errorf("connect to the container runtime's streams: %w", err)
	}
	defer conn.Close()
	if tty && command.IsTerminal(c.In) {
		restore, err := raw(int(c.In.(*os.File).Fd()))
		if err != nil {
			return fmt.Errorf("prepare the terminal: %w", err)
		}
		defer restore()
		go sendSizes(conn, int(c.In.(*os.File).Fd()))
	}
	if stdin {
		go func() {
			_, _ = io.Copy(conn.channel(channelStdin), c.In)
			_ = conn.closeStdin()
		}()
	}
	code, err := conn.receive(c.Out, c.Err)
	switch {
	case err != nil && c.Context.Err() != nil:
		return errors.New("interrupted")
	case err != nil:
		return err
	case code != 0:
		return &command.ExitError{Code: code}
	}
	return nil
}

// raw switches a terminal to raw mode, as cfmakeraw(3) does.
func raw(fd int) (restore func(), err error) {
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	t := *before
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &t); err != nil {
		return nil, err
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }, nil
}

// sendSizes sends the size of the terminal now and whenever it changes.
func sendSizes(conn *connection, fd int) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGWINCH)
	defer signal.Stop(changed)
	for {
		size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err == nil {
			_, err = fmt.Fprintf(conn.channel(channelResize), `{"Width":%d,"Height":%d}`, size.Col, size.Row)
		}
		if err != nil {
			return
		}
		<-changed
	}
}
