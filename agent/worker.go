package agent

import (
	"context"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/volumes"
)

// hint says what may have changed for a pod; hints are summed up until the worker looks.
type hint uint32

const (
	// hintRuntime: the runtime's view of the pod may have moved.
	hintRuntime hint = 1 << iota
	// hintObjects: an object that the pod's volumes or containers use has changed.
	hintObjects
	// hintVerdict: a probe has a new verdict.
	hintVerdict
)

// observeRetry is how soon a worker asks again when the runtime did not answer.
const observeRetry = time.Second

// worker runs one pod: it looks, plans and starts steps, one turn for each thing that happens. All it knows of the
// pod is its own, so it needs no lock; the others reach it through its mailbox, hints and results.
type worker struct {
	hands *Hands
	log   *slog.Logger
	gates *gates

	inbox   latest.Value[Order]
	hints   atomic.Uint32
	wake    latest.Signal
	results chan outcome
	timer   *time.Timer
	// gone is closed when the worker returns: results that come later are for nobody.
	gone chan struct{}
	// released is closed when the pod, which is to end, has given back all that it held.
	released chan struct{}
	// reclaimed is closed when the runtime keeps nothing of the pod any more, see podstate.Desired.Reclaim.
	reclaimed chan struct{}

	desired Order
	memory  podstate.Memory
	cancels map[podstate.Key]context.CancelFunc
	// mounts are the mounted volumes and pulled the images made present, by volume name and by what they are for; onDisk
	// is what the pod's end must take down.
	mounts map[string]volumes.Mounted
	pulled map[podstate.Key]images.Image
	// services are those that were read while the sandbox was made.
	services *serviceRead
	onDisk   map[string]volumes.OnDisk
	// facts come from the runtime's last answer, known; stale when something may have moved since.
	facts runtimeFacts
	known *cri.Snapshot
	stale bool
	// blind: the last look at the pod has failed.
	blind bool
	told  told
	// explained is what the last plan says of the pod; others read it.
	explained atomic.Pointer[Explanation]
	// shown is what the last turn made of the pod; others read it, and wait for the next.
	shown atomic.Pointer[shown]
	life  life
}

func newWorker(hands *Hands, gates *gates, log *slog.Logger) *worker {
	w := &worker{
		hands: hands, log: log, gates: gates,
		inbox: latest.NewValue[Order](), wake: latest.NewSignal(), results: make(chan outcome),
		timer: time.NewTimer(time.Hour), gone: make(chan struct{}), released: make(chan struct{}), reclaimed: make(chan struct{}),
		memory: podstate.NewMemory(), cancels: map[podstate.Key]context.CancelFunc{},
		mounts: map[string]volumes.Mounted{}, pulled: map[podstate.Key]images.Image{},
		facts: newRuntimeFacts(), stale: true, told: told{backoffs: map[string]string{}}, life: life{seen: time.Now()},
	}
	w.timer.Stop()
	w.shown.Store(&shown{over: make(chan struct{})})
	return w
}

// notify tells the worker that something may have changed. It never blocks.
func (w *worker) notify(h hint) {
	w.hints.Or(uint32(h))
	w.wake.Set()
}

// run lives as long as the pod does, or until ctx ends; then its steps are given up and what they did is seen by the
// next life of the agent.
func (w *worker) run(ctx context.Context) {
	defer func() { close(w.shown.Load().over) }() // after gone, for those who wait look at that then
	defer close(w.gone)
	defer w.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case d := <-w.inbox:
			w.take(d)
		case r := <-w.results:
			w.ended(r)
		case <-w.wake:
		case <-w.timer.C:
		}
		w.drain()
		if w.turn(ctx) {
			return
		}
	}
}

// drain takes in all else that has happened, so that one turn serves it all.
func (w *worker) drain() {
	for {
		select {
		case d := <-w.inbox:
			w.take(d)
			continue
		case r := <-w.results:
			w.ended(r)
			continue
		default:
		}
		break
	}
	h := hint(w.hints.Swap(0))
	if h&hintRuntime != 0 {
		w.stale = true
	}
	if h&hintObjects != 0 {
		w.memory.Stale()
	}
}

// take makes the newest order the worker's own.
func (w *worker) take(o Order) {
	if old := w.desired.Pod; old != nil && (metadataMoved(old, o.Pod) || claimsMoved(old, o.Pod)) {
		w.memory.Stale()
	}
	if w.desired.Pod == nil {
		w.log = w.log.With("pod", o.Pod.Namespace+"/"+o.Pod.Name)
		w.life.fresh = o.Pod.Status.StartTime == nil
	}
	w.desired = o
	w.use()
}

// ended takes in what a step came to.
func (w *worker) ended(r outcome) {
	key := r.Step.Key()
	if cancel := w.cancels[key]; cancel != nil && w.memory.InFlight[key] == r.Step {
		cancel()
		delete(w.cancels, key)
	}
	w.memory.Ended(r.Result, time.Now())
	if _, made := r.Step.(podstate.CreateContainer); made {
		w.use()
	}
	switch s := r.Step.(type) {
	case podstate.Mount:
		if r.Problem == nil {
			w.mounts[s.Volume] = r.mounted
		}
	case podstate.EnsureImage:
		w.pulled[s.Key()] = r.image
		w.life.pulling += r.took // next to nothing where the image is there
	case podstate.CreateSandbox, podstate.StopSandbox, podstate.RemoveSandbox,
		podstate.CreateContainer, podstate.StartContainer, podstate.StopContainer, podstate.RemoveContainer, podstate.Resize:
		w.stale = true
	}
}

// turn looks, plans and acts once. It tells whether the pod is done.
func (w *worker) turn(ctx context.Context) (done bool) {
	defer w.turned(time.Now())
	o, err := w.observe(ctx)
	if err != nil {
		w.lookAgain(err)
		return false
	}
	w.blind = false
	p := plan.Pod(w.desired.Desired, o)
	w.tell(p)
	w.memory.Report(&p.Status)
	for _, key := range p.Cancel {
		if cancel := w.cancels[key]; cancel != nil {
			cancel()
		}
	}
	for _, step := range p.Steps {
		w.start(ctx, step)
	}
	w.timer.Stop()
	if !p.Wake.IsZero() {
		w.timer.Reset(max(0, time.Until(p.Wake)))
	}
	return p.Done
}

// lookAgain sees to it that the worker soon tries once more to see its pod. The trouble is logged once.
func (w *worker) lookAgain(err error) {
	if !w.blind {
		w.log.Warn("cannot see what there is of the pod, trying again", "err", err, "every", observeRetry)
	}
	w.blind = true
	w.explainLook(err)
	w.timer.Reset(observeRetry)
}

// start sends a step on its way; its result comes back to the loop.
func (w *worker) start(ctx context.Context, step podstate.Step) {
	key := step.Key()
	if _, sandbox := step.(podstate.CreateSandbox); sandbox {
		w.services = readServices(ctx, w.hands, w.desired.Pod)
	}
	ctx, cancel := context.WithCancel(ctx)
	if older := w.cancels[key]; older != nil {
		// Overtaken by a stricter stop: the older call runs on, for the runtime serves both.
		context.AfterFunc(ctx, older)
	}
	w.cancels[key] = cancel
	w.memory.Began(step)
	t := w.task(step)
	go func() {
		began := time.Now()
		out := t.execute(ctx)
		out.took = time.Since(began)
		t.report(out, out.took)
		w.hands.Metrics.Step(t.pod, step, out.took, out.Problem)
		select {
		case w.results <- out:
		case <-w.gone:
		}
	}()
}

// task is a step with the worker's facts as they are now. The maps are copied: the worker goes on while the step runs.
func (w *worker) task(step podstate.Step) *task {
	t := &task{hands: w.hands, log: w.log, gates: w.gates, step: step, pod: w.desired.Pod, instances: w.facts.containers}
	if s := newestReady(w.facts.sandboxes); s != nil {
		t.sandbox = s
	}
	switch s := step.(type) {
	case podstate.CreateContainer:
		t.mounts, t.image, t.services = maps.Clone(w.mounts), w.pulled[podstate.EnsureImage{Container: s.Name}.Key()], w.services
		t.pulled = maps.Clone(w.pulled)
	case podstate.StopContainer:
		t.made = w.facts.made[s.ID]
	case podstate.Unmount:
		t.onDisk = w.onDisk[s.Volume]
	}
	return t
}

// newestReady is the sandbox that containers live in; nil where there is none.
func newestReady(all []podstate.Sandbox) *podstate.Sandbox {
	var found *podstate.Sandbox
	for i := range all {
		if s := &all[i]; s.Ready && (found == nil || s.Attempt > found.Attempt) {
			found = s
		}
	}
	return found
}

// metadataMoved: labels or annotations differ, which downward API volumes show.
func metadataMoved(a, b *corev1.Pod) bool {
	return !maps.Equal(a.Labels, b.Labels) || !maps.Equal(a.Annotations, b.Annotations)
}
