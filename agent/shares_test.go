package agent

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodelet/nodelet/agent/podcgroups"
	"github.com/nodelet/nodelet/agent/podstate"
)

// brokenCgroups refuses demands until it is repaired.
type brokenCgroups struct {
	podcgroups.None
	broken atomic.Bool
	has    atomic.Pointer[podstate.Demand]
}

func (c *brokenCgroups) SetDemand(d podstate.Demand) error {
	if c.broken.Load() {
		return errors.New("systemd does not answer")
	}
	c.has.Store(&d)
	return nil
}

// TestSharesAreSetAgain checks that the classes get their shares after a failure and after another program has changed
// them too, although no pod changes, and that the newest demand counts.
func TestSharesAreSetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &brokenCgroups{}
		c.broken.Store(true)
		k := newShareKeeper(c, slog.New(slog.DiscardHandler))
		go k.run(t.Context())
		want := podstate.Demand{BurstableCPU: 1500}
		k.set(podstate.Demand{BurstableCPU: 500})
		synctest.Wait()
		k.set(want)
		synctest.Wait()
		c.broken.Store(false)
		for _, when := range []string{"after a failure", "after a change by another program"} {
			c.has.Store(&podstate.Demand{})
			time.Sleep(sharesInterval)
			synctest.Wait()
			if got := *c.has.Load(); got != want {
				t.Errorf("%s: got %+v, want %+v", when, got, want)
			}
		}
	})
}
