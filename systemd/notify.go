package systemd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// States for Notify. Several can be joined with newlines.
const (
	Ready    = "READY=1"    // startup has finished
	Stopping = "STOPPING=1" // shutdown has begun
	Alive    = "WATCHDOG=1" // keep-alive: see WatchdogInterval
)

// Status returns a state that shows a line in `systemctl status`.
func Status(line string) string { return "STATUS=" + strings.ReplaceAll(line, "\n", " ") }

// Notify sends state to the socket NOTIFY_SOCKET, a path or, with a leading "@", a name in the abstract namespace.
// Without that variable it does nothing.
func Notify(state string) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	if name[0] != '/' && name[0] != '@' {
		return fmt.Errorf("notify systemd: NOTIFY_SOCKET is %q, neither a path nor an abstract name", name)
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: name})
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	_, err = c.Write([]byte(state))
	if err := errors.Join(err, c.Close()); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}

// WatchdogInterval returns how often Alive has to be sent: half of WatchdogSec of the unit. 0 means that systemd does
// not watch this process.
func WatchdogInterval() (time.Duration, error) {
	text := os.Getenv("WATCHDOG_USEC")
	if text == "" {
		return 0, nil
	}
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0, nil
	}
	usec, err := strconv.ParseInt(text, 10, 64)
	if err != nil || usec <= 0 || usec > int64(time.Duration(1<<63-1)/time.Microsecond) {
		return 0, fmt.Errorf("read WATCHDOG_USEC: %q is not a number of microseconds", text)
	}
	return time.Duration(usec) * time.Microsecond / 2, nil
}

// Watch sends Alive at each interval while healthy returns nil, until ctx ends. If healthy returns an error it sends
// nothing, and systemd restarts the agent. failed is called with each error of healthy and of the sending. With an
// interval of 0 Watch returns at once.
func Watch(ctx context.Context, interval time.Duration, healthy func() error, failed func(error)) {
	if interval <= 0 {
		return
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := healthy()
		if err == nil {
			err = Notify(Alive)
		}
		if err != nil {
			failed(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
