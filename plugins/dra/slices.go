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

// awaitDrivers finds once, at the start, which drivers have ResourceSlices for this node: those that do not register
// again are treated like those that go later.
func (d *DRA) awaitDrivers() {
	d.persist(d.background.Context(), "list the ResourceSlices of DRA drivers", func() error {
		names, err := d.cfg.API.Drivers(d.background.Context())
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

// sync deletes the ResourceSlices of a driver that is gone for longer than the grace period: otherwise the scheduler
// would send pods that cannot run. mu is held.
func (d *DRA) sync(name string) {
	end, away := d.withdrawals[name]
	switch {
	case d.usable(name):
		if away {
			end()
			delete(d.withdrawals, name)
		}
	case !away && !d.background.Ended():
		ctx, cancel := context.WithCancel(d.background.Context())
		d.withdrawals[name] = cancel
		d.background.Go(func() { d.withdraw(ctx, name) })
	}
}

// withdraw deletes the ResourceSlices of a driver, unless the driver registers in time.
func (d *DRA) withdraw(ctx context.Context, name string) {
	if !backoff.Sleep(ctx, d.cfg.Grace) {
		return
	}
	d.log.Info("DRA driver is gone, its ResourceSlices for this node are no longer valid", "driver", name)
	d.persist(ctx, "delete the ResourceSlices of a DRA driver that is gone",
		func() error { return d.cfg.API.Delete(ctx, name) })
}

// persist calls do until it succeeds or ctx ends.
func (d *DRA) persist(ctx context.Context, what string, do func() error) {
	for wait := withdrawFirst; ; wait = min(2*wait, withdrawMax) {
		err := do()
		if err == nil || ctx.Err() != nil {
			return
		}
		d.log.Warn("cannot "+what+", trying again", "err", err, "retryIn", wait)
		if !backoff.Sleep(ctx, wait) {
			return
		}
	}
}
