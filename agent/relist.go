package agent

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/internal/periodic"
)

// relistEvery is how often the relister lists the runtime's pods without an event. Events can be lost; this list
// finds what they have missed.
const relistEvery = time.Minute

// relistWithoutEvents is how often it does so while the runtime has no event stream. Each new connection may be to a
// runtime that has one.
const relistWithoutEvents = time.Second

// relister listens to the runtime's events, and lists all its pods at each new connection and from time to time. Until
// the first list has succeeded, and after one that failed, it lists often: pods wait for that.
type relister struct {
	runtime Runtime
	metrics Metrics
	log     *slog.Logger
	// now asks for a list at once.
	now latest.Signal
	// failing: the last list has failed.
	failing bool
}

func newRelister(runtime Runtime, metrics Metrics, log *slog.Logger) *relister {
	return &relister{runtime: runtime, metrics: metrics, log: log, now: latest.NewSignal()}
}

// run works until ctx ends. It calls ended for each instance that has ended by an event, and listed with each list.
func (r *relister) run(ctx context.Context, ended func(types.UID, cri.Instance), listed func([]cri.PodSummary)) {
	every, wait := relistEvery, relistWithoutEvents
	noEvents := make(chan uint64, 1)
	go r.watch(ctx, ended, noEvents)
	var over uint64
	for {
		select {
		case <-ctx.Done():
			return
		case over = <-noEvents:
			every, wait = relistWithoutEvents, relistWithoutEvents
		case <-r.now:
		case <-time.After(periodic.Until(wait)):
		}
		wait = relistWithoutEvents
		if all, ok := r.list(ctx); ok {
			wait = every
			listed(all)
		}
		if every == relistWithoutEvents && r.runtime.Connections() != over { // the runtime may have events now
			every = relistEvery
			go r.watch(ctx, ended, noEvents)
		}
	}
}

// watch listens to the runtime's events until ctx ends. If the runtime has none, it sends the number of the connection.
func (r *relister) watch(ctx context.Context, ended func(types.UID, cri.Instance), noEvents chan<- uint64) {
	err := r.runtime.Watch(ctx, ended, r.now.Set)
	if ctx.Err() == nil {
		r.log.Warn("the runtime sends no events, listing its pods often; containerd 2.0 sends them, and CRI-O with "+
			"enable_pod_events = true", "err", err, "interval", relistWithoutEvents)
		noEvents <- r.runtime.Connections()
	}
}

// list returns the runtime's pods, and whether the runtime has listed them. It logs the first failure in a row.
func (r *relister) list(ctx context.Context) (all []cri.PodSummary, ok bool) {
	began := time.Now()
	all, err := r.runtime.Relist(ctx)
	r.metrics.Relisted(began, time.Since(began), err)
	if err != nil && ctx.Err() == nil && !r.failing {
		r.log.Warn("cannot list the runtime's pods, trying again until it can", "err", err)
	}
	if err == nil && r.failing {
		r.log.Info("the runtime lists its pods again")
	}
	r.failing = err != nil
	return all, err == nil
}
