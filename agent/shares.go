package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/internal/periodic"
)

// shareKeeper sets what the QoS classes get from what their pods request, in a goroutine of its own: no pod waits for
// it.
type shareKeeper struct {
	cgroups Cgroups
	log     *slog.Logger
	// next brings what the pods request; last is what was put there before, nil for nothing. Only the supervisor's loop
	// uses last.
	next latest.Value[podstate.Demand]
	last *podstate.Demand
}

func newShareKeeper(cgroups Cgroups, log *slog.Logger) *shareKeeper {
	return &shareKeeper{cgroups: cgroups, log: log, next: latest.NewValue[podstate.Demand]()}
}

// set passes on what the pods request together, if it has changed.
func (k *shareKeeper) set(d podstate.Demand) {
	if k.last == nil || *k.last != d {
		k.last = &d
		k.next.Put(d)
	}
}

// sharesInterval is the time after which the shares are set again, as in the kubelet: that may have failed, or another
// program may have changed them.
const sharesInterval = time.Minute

// run sets the shares until ctx ends.
func (k *shareKeeper) run(ctx context.Context) {
	var d podstate.Demand
	var again <-chan time.Time // nil: nothing is known of the pods yet
	for {
		select {
		case <-ctx.Done():
			return
		case d = <-k.next:
		case <-again:
		}
		again = time.After(periodic.Until(sharesInterval))
		if err := k.cgroups.SetDemand(d); err != nil {
			k.log.Warn("cannot set the CPU shares and protected memory of the pods' classes, keeping the old ones",
				"err", err, "retryIn", sharesInterval)
		}
	}
}
