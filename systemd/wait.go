package systemd

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// pollInterval is the time between two looks at a starting unit.
const pollInterval = time.Second

// restart reloads systemd's units, restarts one, and waits for it. The end of ctx ends only the wait.
func (i *Installer) restart(ctx context.Context, unit string, ready func(context.Context) string) error {
	whole := context.WithoutCancel(ctx)
	if err := i.systemctl(whole, "daemon-reload"); err != nil {
		return err
	}
	if err := i.systemctl(whole, "restart", "--no-block", unit); err != nil {
		return err
	}
	return i.wait(ctx, unit, ready)
}

// wait waits, with Wait, until a unit that was started is active and ready returns nothing to wait for, and prints each
// new state.
func (i *Installer) wait(ctx context.Context, unit string, ready func(context.Context) string) error {
	if i.Wait == 0 || i.DryRun {
		return nil
	}
	limit := time.NewTimer(i.Wait)
	defer limit.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	last := ""
	for {
		state, done, err := progress(ctx, unit, ready)
		if err != nil || done {
			return err
		}
		if state != last {
			fmt.Fprintf(i.Out, "%s: %s\n", unit, state)
			last = state
		}
		select {
		case <-ctx.Done():
			return errors.New("interrupted")
		case <-limit.C:
			return fmt.Errorf("%s is not ready after %s: %s", unit, i.Wait, state)
		case <-tick.C:
		}
	}
}

// progress returns what a starting unit waits for, and whether it has started. A unit that has failed is an error. As
// long as it has a job, it may show its state from before the restart.
func progress(ctx context.Context, unit string, ready func(context.Context) string) (string, bool, error) {
	p, err := properties(ctx, unit)
	if err != nil {
		return "", false, err
	}
	state := p["ActiveState"]
	if text := p["StatusText"]; text != "" {
		state += ", " + text
	}
	switch {
	case p["Job"] != "":
		return state, false, nil
	case p["ActiveState"] == "failed":
		return state, false, fmt.Errorf("%s: %s", unit, state)
	case p["ActiveState"] != "active":
		return state, false, nil
	case ready == nil:
		return state, true, nil
	}
	if waits := ready(ctx); waits != "" {
		return "active, " + waits, false, nil
	}
	return state, true, nil
}
