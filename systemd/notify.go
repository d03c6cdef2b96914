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

// The states to tell systemd. Several go together, one a line.
const (
	Ready    = "READY=1"    // the start is over
	Stopping = "STOPPING=1" // the end has begun
	Alive    = "WATCHDOG=1" // still alive: see WatchdogInterval
)

// Status is a state with a line for `systemctl status`.
func Status(line string) string { return "STATUS=" + strings.ReplaceAll(line, "\n", " ") }

// Notify sends state to the socket named by NOTIFY_SOCKET, a path or, with a leading "@", a name in the abstract
// namespace. Without that variable nobody listens, and nothing happens.
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

// WatchdogInterval says how often Alive must be sent: half of WatchdogSec of the unit. 0 means that systemd does not
// wait for it, or waits for another process (WATCHDOG_PID).
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

// Watch sends Alive at each interval for as long as healthy returns nil, until ctx ends. When the agent is not well it
// keeps silent, and systemd restarts it. failed is told each error, of healthy and of the sending. An interval of 0
// returns at once.
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
