package dra

import (
	"context"
	"time"

	"github.com/nodelet/nodelet/internal/backoff"
)

const (
	withdrawFirst = time.Second
	withdrawMax   = 5 * time.Minute
)

// awaitDrivers looks once which drivers have ResourceSlices for this node: those that do not come back after the start
// are as gone as those that go later.
func (d *DRA) awaitDrivers() {
	d.persist(d.background.Context(), "look which DRA drivers have ResourceSlices", func() error {
		names, err := d.cfg.Slices.Drivers(d.background.Context())
		if err != nil {
			return err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, name := range names {
			d.sync(name)
		}
		return nil
	})
}

// sync has the ResourceSlices of a driver deleted that is away for longer than the grace: otherwise pods would be sent
// here that cannot run. mu is held.
func (d *DRA) sync(name string) {
	end, away := d.withdrawals[name]
	switch {
	case d.usable(name):
		if away {
			end()
			delete(d.withdrawals, name)
		}
	case !away && d.cfg.Slices != nil && !d.background.Ended():
		ctx, cancel := context.WithCancel(d.background.Context())
		d.withdrawals[name] = cancel
		d.background.Go(func() { d.withdraw(ctx, name) })
	}
}

// withdraw deletes the ResourceSlices of a driver, unless it comes back in time.
func (d *DRA) withdraw(ctx context.Context, name string) {
	if !backoff.Sleep(ctx, d.cfg.Grace) {
		return
	}
	d.log.Info("DRA driver is away; its ResourceSlices for this node are deleted", "driver", name)
	d.persist(ctx, "delete the ResourceSlices of a DRA driver that is away",
		func() error { return d.cfg.Slices.Delete(ctx, name) })
}

// persist does something until it succeeds or ctx ends.
func (d *DRA) persist(ctx context.Context, what string, do func() error) {
	for wait := withdrawFirst; ; wait = min(2*wait, withdrawMax) {
		err := do()
		if err == nil || ctx.Err() != nil {
			return
		}
		d.log.Warn("cannot "+what+", trying again", "err", err, "after", wait)
		if !backoff.Sleep(ctx, wait) {
			return
		}
	}
}
