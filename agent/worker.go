package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/nodelet/nodelet/agent/execute"
	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/internal/latest"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// hint is what may have changed for a pod: a level-triggered wake-up. Hints are collected until the next sync.
type hint uint32

const (
	// hintRuntime: the runtime may show the pod in another state.
	hintRuntime hint = 1 << iota
	// hintObjects: an object that the pod's volumes or containers use has changed.
	hintObjects
	// hintReady: the runtime and its network have become ready.
	hintReady
	// hintOther: what each sync reads has changed: the result of a probe, the health of a device, an address of the node.
	hintOther
)

// observeRetry is the time until a worker asks the runtime again after an error.
const observeRetry = time.Second

// worker runs one pod: after each change it syncs, that is, it observes, plans and starts steps. Its goroutine owns all
// state of the pod, so it needs no lock. Other goroutines reach it through its inbox, hints and results.
type worker struct {
	cfg *Config
	log *slog.Logger

	inbox   latest.Value[order]
	hints   atomic.Uint32
	endings endings
	wake    latest.Signal
	results chan *execute.Outcome // as values they would double the stack of a worker at rest
	timer   *time.Timer
	milestones

	order  order
	memory podstate.Memory
	// flights are the steps in flight.
	flights flights
	stepsSpan
	// left is what the pod's steps have left for later ones.
	left  execute.Results
	facts runtimeFacts
	// unobserved: the last attempt to observe the pod has failed.
	unobserved bool
	published  published
	// explained is what explain shows of the pod; other goroutines read it.
	explained atomic.Pointer[Explanation]
	// result is the result of the last sync. Other goroutines read it, and wait for the next.
	result  atomic.Pointer[syncResult]
	startup startup
}

// milestones are what others wait for: each channel is closed when the pod has come that far.
type milestones struct {
	// gone is closed when the worker returns. Later results are dropped.
	gone chan struct{}
	// released is closed when a pod that ends has released all its resources.
	released chan struct{}
	// onFreed is called then, and when a running pod has been resized to less.
	onFreed func()
	// reclaimed is closed when the runtime has nothing left of the pod; see podstate.Desired.Reclaim.
	reclaimed chan struct{}
}

// isReleased reports whether the pod has given back all that it held.
func (m *milestones) isReleased() bool { return latest.Closed(m.released) }

func newWorker(cfg *Config, facts runtimeFacts, onFreed func()) *worker {
	w := &worker{
		cfg:     cfg,
		log:     cfg.Log,
		inbox:   latest.NewValue[order](),
		wake:    latest.NewSignal(),
		results: make(chan *execute.Outcome),
		timer:   time.NewTimer(time.Hour),
		milestones: milestones{
			gone:      make(chan struct{}),
			released:  make(chan struct{}),
			onFreed:   onFreed,
			reclaimed: make(chan struct{}),
		},
		memory:  podstate.NewMemory(),
		flights: flights{},
		left:    execute.NewResults(),
		facts:   facts,
		startup: startup{seen: time.Now()},
	}
	w.timer.Stop()
	w.result.Store(&syncResult{replaced: make(chan struct{})})
	return w
}

// notify wakes the worker because something may have changed. It never blocks.
func (w *worker) notify(h hint) {
	w.hints.Or(uint32(h))
	w.wake.Set()
}

// notifyEnd notifies the worker because an instance of the pod may have ended. It never blocks.
func (w *worker) notifyEnd(i cri.Instance) {
	w.endings.add(i)
	w.wake.Set()
}

// run works until nothing is left of the pod, or until ctx ends. Then it cancels its steps; the next run of the agent
// observes what they have done.
func (w *worker) run(ctx context.Context) {
	defer func() { close(w.result.Load().replaced) }() // after gone, which readers check next
	defer close(w.gone)
	defer w.timer.Stop()
	defer func() { w.span.End(nil) }()
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-w.inbox:
			w.take(o)
		case r := <-w.results:
			w.recordOutcome(r)
		case <-w.wake:
		case <-w.timer.C:
		}
		w.drain()
		if w.order.Pod == nil {
			continue // hints came before the first order, while the pod waits for its admission
		}
		if w.sync(ctx) {
			return
		}
	}
}

// drain takes all pending orders, outcomes and hints, so that one sync handles all of them.
func (w *worker) drain() {
	for {
		select {
		case o := <-w.inbox:
			w.take(o)
			continue
		case r := <-w.results:
			w.recordOutcome(r)
			continue
		default:
		}
		break
	}
	w.facts.changed = append(w.facts.changed, w.endings.take()...)
	h := hint(w.hints.Swap(0))
	if h&hintRuntime != 0 {
		w.facts.stale = true
	}
	if h&hintObjects != 0 {
		w.memory.Stale()
	}
	if h&hintReady != 0 {
		w.memory.RuntimeReady()
	}
}

// take replaces the worker's order by a newer one.
func (w *worker) take(o order) {
	if old := w.order.Pod; old != nil && (shownMoved(old, o.Pod) || claimsMoved(old, o.Pod)) {
		w.memory.Stale()
	}
	if w.order.Pod == nil {
		w.log = w.log.With("pod", podutil.Name(o.Pod))
		w.startup.fresh = o.Pod.Status.StartTime == nil
		w.startup.over = podutil.IsTerminal(o.Pod.Status.Phase)
	}
	if o.Publish != nil && w.published.statusOf == "" && o.Publish.Status.StartTime != nil {
		w.memory.Resume() // the mirror pod, which was not known before, shows what an earlier run of the agent has seen
		w.facts.logged = nil
	}
	w.order = o
	w.use()
}

// recordOutcome records the outcome of a step.
func (w *worker) recordOutcome(r *execute.Outcome) {
	key := r.Step.Key()
	if f, runs := w.flights[key]; runs && w.memory.Recall().InFlight(key) == r.Step {
		f.cancel()
		delete(w.flights, key)
	}
	w.memory.Ended(r.Result, time.Now())
	w.use()
	w.left.Add(r)
	w.facts.outdate(r.Result, w.log)
}

// deleteAgain is after how long the final delete of a pod is repeated while the API server still has the pod: an etcd
// that was restored from a backup has it again, or the pod has a finalizer.
const deleteAgain = time.Minute

// sync observes, plans and acts once. It reports whether the worker can end.
func (w *worker) sync(ctx context.Context) (done bool) {
	defer w.countSync(time.Now())
	o, err := w.observe(ctx)
	if err != nil {
		w.observeLater(err)
		return false
	}
	w.unobserved = false
	p := plan.Pod(w.order.Desired, o)
	w.publish(p)
	w.linkLogs()
	for _, key := range p.Cancel {
		if f, runs := w.flights[key]; runs {
			f.cancel()
		}
	}
	w.recordStop(p.Stop)
	ctx = w.traced(ctx, p.Steps)
	for _, step := range p.Steps {
		w.start(ctx, step, p.Ending != nil)
	}
	w.endSpan()
	w.timer.Stop()
	switch {
	case w.order.awaitsRemoval(&p):
		w.timer.Reset(deleteAgain)
	case !p.Wake.IsZero():
		w.timer.Reset(max(0, time.Until(p.Wake)))
	}
	return p.Done
}

// observeLater makes the worker observe its pod again after observeRetry. It logs the first failure in a row.
func (w *worker) observeLater(err error) {
	if !w.unobserved {
		w.log.Warn("cannot observe the pod, retrying", "err", err, "retryIn", observeRetry)
	}
	w.unobserved = true
	w.explainObserving(err)
	w.timer.Reset(observeRetry)
}

// start runs a step in a goroutine. Its outcome comes back to the worker.
func (w *worker) start(ctx context.Context, step podstate.Step, ending bool) {
	key := step.Key()
	t := &execute.Task{
		Log:       w.log,
		Step:      step,
		Pod:       w.order.Pod,
		Sandbox:   w.facts.readySandbox(),
		Instances: w.facts.containers,
		Ending:    ending,
	}
	w.cfg.Steps.Begin(ctx, t, &w.left, w.memory.Recall(), w.facts.made)
	ctx, cancel := context.WithCancel(ctx)
	if older, runs := w.flights[key]; runs {
		// A stricter stop replaces it. The older call continues, as the runtime serves both.
		context.AfterFunc(ctx, older.cancel)
	}
	w.flights[key] = flight{cancel, time.Now()}
	w.memory.Began(step)
	go func() {
		select {
		case w.results <- w.cfg.Steps.Execute(ctx, t):
		case <-w.gone:
		}
	}()
}

// shownMoved reports whether what downward API volumes show of a pod differs.
func shownMoved(a, b *corev1.Pod) bool {
	same := func(a, b corev1.Container) bool { return equality.Semantic.DeepEqual(a.Resources, b.Resources) }
	return !maps.Equal(a.Labels, b.Labels) || !maps.Equal(a.Annotations, b.Annotations) ||
		!slices.EqualFunc(a.Spec.Containers, b.Spec.Containers, same) ||
		!slices.EqualFunc(a.Spec.InitContainers, b.Spec.InitContainers, same)
}

// claimsMoved reports whether the names of the objects behind the pod's resource claims have changed.
func claimsMoved(a, b *corev1.Pod) bool {
	return !equality.Semantic.DeepEqual(a.Status.ResourceClaimStatuses, b.Status.ResourceClaimStatuses) ||
		!equality.Semantic.DeepEqual(a.Status.ExtendedResourceClaimStatus, b.Status.ExtendedResourceClaimStatus)
}
