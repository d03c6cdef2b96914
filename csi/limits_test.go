package csi_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nodelet/nodelet/test/csi/fake"
)

// limits returns, as Config.Limits, a period that setPeriod changes.
func (w *world) limits(ctx context.Context, _ string) (time.Duration, <-chan struct{}, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.period, w.periodChanged, ctx.Err()
}

func (w *world) setPeriod(period time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.period = period
	close(w.periodChanged)
	w.periodChanged = make(chan struct{})
}

// untilLimit waits until the driver's last word about the node has this limit.
func (w *world) untilLimit(want int64) {
	w.T.Helper()
	w.Until("the limit is passed on", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.infos) > 0 && w.infos[len(w.infos)-1].MaxVolumes == want
	})
}

// TestLimits checks when a driver is asked again how many volumes the node can have: by period, when it could not
// attach one more, not for a driver without a period, and that an answer without news is not passed on.
func TestLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.untilLimit(7)
	w.driver.SetMaxVolumes(6)
	w.csi.LimitsExceeded(driverName) // no period: nothing is asked
	w.csi.LimitsExceeded("no such driver")
	w.setPeriod(time.Hour)
	w.Until("the driver is asked", func() bool {
		w.csi.LimitsExceeded(driverName)
		return w.csi.Drivers()[0].MaxVolumes == 6
	})
	w.untilLimit(6)
	w.mu.Lock()
	before := len(w.infos)
	w.mu.Unlock()
	w.setPeriod(time.Millisecond)
	asked := w.driver.Asked()
	w.Until("the driver is asked by period", func() bool { return w.driver.Asked() > asked+3 })
	w.mu.Lock()
	if got := len(w.infos); got != before {
		t.Errorf("answers without news passed on: got %d, want none", got-before)
	}
	w.mu.Unlock()
	w.driver.SetMaxVolumes(5)
	w.untilLimit(5)
	w.setPeriod(0)
}

// TestLimitsWhileRegistering checks that a driver is not asked again before it is registered: its registration may
// fail.
func TestLimitsWhileRegistering(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.Kill()
	w.stopDriver()
	w.begin()
	w.config = func(c *fake.Config) { c.Registry = "" }
	w.startDriver()
	w.setPeriod(time.Millisecond)
	w.refuse = errors.New("no")
	w.on = func() { time.Sleep(50 * time.Millisecond) } // time for what must not come
	if _, err := w.csi.Accept(t.Context(), w.plugin()); err == nil {
		t.Error("got no error, want that of the API server")
	}
	if n := w.driver.Asked(); n != 1 {
		t.Errorf("the driver was asked about the node %d times, want once", n)
	}
}
