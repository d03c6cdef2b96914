package agent

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

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

// TestHugeDemand checks that pods that request more than any number do not take the shares and the protection away from
// the others of their class.
func TestHugeDemand(t *testing.T) {
	const enough = 1 << 59
	burstable := podOf("burstable", "13835058055282163")
	burstable.Spec.Containers[0].Resources.Requests["memory"] = resource.MustParse("9223372036854775808")
	guaranteed := burstable.DeepCopy()
	guaranteed.Spec.Containers[0].Resources.Limits = guaranteed.Spec.Containers[0].Resources.Requests
	sum := demandOf(podOf("small", "1"))
	for range 20 {
		sum = sum.Plus(demandOf(burstable)).Plus(demandOf(guaranteed))
		if sum.BurstableCPU < enough || sum.BurstableMemory < enough || sum.GuaranteedMemory < enough {
			t.Fatalf("got %+v, want nothing below %d", sum, enough)
		}
	}
}
