package systemd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Status returns a state that shows a line in `systemctl status`.
func Status(line string) string { return "STATUS=" + strings.ReplaceAll(line, "\n", " ") }

// Line is the line that `systemctl status` shows of the agent. It is safe for concurrent use.
type Line struct {
	mu          sync.Mutex
	state, wait string
}

// SetState sets what the agent does.
func (l *Line) SetState(text string) { l.set(&l.state, text) }

// SetWait sets what the node waits for, whatever the agent does; "" for nothing.
func (l *Line) SetWait(text string) { l.set(&l.wait, text) }

func (l *Line) set(part *string, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*part = text
	parts := slices.DeleteFunc([]string{l.state, l.wait}, func(s string) bool { return s == "" })
	_ = Notify(Status(strings.Join(parts, "; "))) // the line is no more than a help
}

// Notify sends state to the socket NOTIFY_SOCKET. Without that variable it does nothing.
func Notify(state string) error {
	if _, err := daemon.SdNotify(false, state); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}

// watchdogInterval returns how often a keep-alive has to be sent: a quarter of WatchdogSec of the unit, so that systemd
// ends the agent only after three failed health checks. 0 means that systemd does not watch this process.
func watchdogInterval() (time.Duration, error) {
	limit, err := daemon.SdWatchdogEnabled(false)
	return limit / 4, err
}

// watch sends keep-alives at each interval while healthy returns nil, until ctx ends. If healthy returns an error it
// sends nothing, and systemd restarts the agent. failed is called with each error of healthy and of the sending. With
// an interval of 0 watch returns at once.
func watch(ctx context.Context, interval time.Duration, healthy func() error, failed func(error)) {
	if interval <= 0 {
		return
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := healthy()
		if err == nil {
			err = Notify(daemon.SdNotifyWatchdog)
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
