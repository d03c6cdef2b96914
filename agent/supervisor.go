package agent

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/internal/latest"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods"
)

// relistEvery is how often the supervisor lists the runtime's pods without an event. Events can be lost; this list
// finds what they have missed.
const relistEvery = time.Minute

// relistWithoutEvents is how often it does so while the runtime has no event stream.
const relistWithoutEvents = time.Second

// Supervisor keeps one worker for each pod that the sources or the runtime know. One goroutine, its loop, owns the
// set of workers; other goroutines send it the newest set of pods and functions to call.
type Supervisor struct {
	cfg *Config
	log *slog.Logger

	// sets brings the newest set of pods, calls what the loop is to call between two events; see post and do.
	sets  latest.Value[*pods.Set]
	calls chan func()
	// began is closed when the loop has begun, known when the pods of the node are known (see AwaitPods), nodeSeen when
	// the Node object is known, gone when the loop has ended.
	began, known, gone chan struct{}
	nodeSeen           <-chan struct{}

	workers map[types.UID]*entry
	// set is the newest full set of the sources.
	set *pods.Set
	// relist asks for a list of the runtime's pods now. listed are those of the last list that have not gone since; nil
	// before the first list.
	relist latest.Signal
	listed map[types.UID]cri.PodSummary
	// present are the pods that have something on the node, by name, for other goroutines; nil before the first list.
	present atomic.Pointer[map[types.NamespacedName][]types.UID]
	// shares brings what burstable pods request, in thousandths of a CPU; shared is what was put there last.
	shares latest.Value[int64]
	shared *int64
	alive  sync.WaitGroup
}

// NewSupervisor makes a supervisor.
func NewSupervisor(cfg Config) *Supervisor {
	return &Supervisor{
		cfg:      cfg.complete(),
		log:      cfg.Log,
		sets:     latest.NewValue[*pods.Set](),
		calls:    make(chan func(), 128),
		began:    make(chan struct{}),
		known:    make(chan struct{}),
		gone:     make(chan struct{}),
		nodeSeen: cfg.NodeSeen,
		workers:  map[types.UID]*entry{},
		set:      &pods.Set{},
		relist:   latest.NewSignal(),
		shares:   latest.NewValue[int64](),
	}
}

// Want takes the newest full set of pods. It has one caller: the merge of the sources.
func (s *Supervisor) Want(set *pods.Set) { s.sets.Put(set) }

// RuntimeChanged makes the pod's worker ask the runtime again.
func (s *Supervisor) RuntimeChanged(pod types.UID) { s.notify(pod, hintRuntime) }

// ObjectsChanged notifies the pod's worker that an object that the pod uses has changed.
func (s *Supervisor) ObjectsChanged(pod types.UID) { s.notify(pod, hintObjects) }

// VerdictChanged notifies the pod's worker that a probe has another result.
func (s *Supervisor) VerdictChanged(pod types.UID) { s.notify(pod, hintVerdict) }

// ProbeFailed records an event about a container: a probe has failed, or cannot be run.
func (s *Supervisor) ProbeFailed(pod types.UID, container, reason, message string) {
	s.post(func() {
		if e := s.workers[pod]; e != nil {
			s.cfg.Events.PodEvent(e.source, container, corev1.EventTypeWarning, reason, message)
		}
	})
}

func (s *Supervisor) notify(pod types.UID, h hint) {
	s.post(func() {
		if e := s.workers[pod]; e != nil {
			e.worker.notify(h)
		}
	})
}

// post makes the loop call f. It blocks until the loop accepts f or has ended, and reports whether f was accepted.
func (s *Supervisor) post(f func()) bool {
	select {
	case s.calls <- f:
		return true
	case <-s.gone:
		return false
	}
}

// do makes the loop call f, and reports whether the call has returned. It has not if the loop has ended, or if ctx ends
// before; in that case f may still be called later.
func (s *Supervisor) do(ctx context.Context, f func()) bool {
	done := make(chan struct{})
	select {
	case s.calls <- func() { f(); close(done) }:
	case <-s.gone:
		return false
	case <-ctx.Done():
		return false
	}
	select {
	case <-done:
		return true
	case <-s.gone:
	case <-ctx.Done():
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// Run works until ctx ends and all workers have returned. Pods keep running.
func (s *Supervisor) Run(ctx context.Context) {
	defer s.alive.Wait()
	defer close(s.gone)
	close(s.began)
	go s.watchRuntime(ctx)
	s.alive.Go(func() { s.keepShares(ctx) })
	nodeSeen := s.nodeSeen
	for {
		select {
		case <-ctx.Done():
			return
		case <-nodeSeen:
			nodeSeen = nil
			s.reconcile(ctx) // pods of the API server have waited for this
		case set := <-s.sets:
			s.take(ctx, set)
		case call := <-s.calls:
			call()
		}
	}
}

// take makes set the newest one.
func (s *Supervisor) take(ctx context.Context, set *pods.Set) {
	if set.Synced && !s.set.Synced {
		s.relist.Set() // orphans can be recognized only now
	}
	s.set = set
	s.reconcile(ctx)
}

// reconcile brings the workers in line with the newest set.
func (s *Supervisor) reconcile(ctx context.Context) {
	s.adoptListed(ctx)
	s.discardFitting()
	for _, pod := range s.pendingPods() {
		if s.waitsFor(pod) == nil {
			s.admit(ctx, s.begin(ctx, pod))
		}
	}
	for uid, e := range s.workers {
		if pod, wanted := s.set.Pods[uid]; wanted {
			s.update(e, pod)
		} else {
			s.orphan(e) // its own source has removed it; the other sources need not have synced
		}
	}
	s.resizes()
	s.publishPresent()
	s.share()
	s.announceKnown()
}

// announceKnown closes known once all pods of the node have workers: every source has synced, and the runtime has
// listed its pods. A source that fails later changes nothing.
func (s *Supervisor) announceKnown() {
	if !s.set.Synced || s.listed == nil {
		return
	}
	select {
	case <-s.known:
	default:
		close(s.known)
	}
}

// pendingPods are the pods without a worker, in the order of admission: first those that an earlier run of the agent
// has admitted, then static pods, then by age.
func (s *Supervisor) pendingPods() []*corev1.Pod {
	var found []*corev1.Pod
	rank := map[types.UID]int{}
	for uid, pod := range s.set.Pods {
		if s.workers[uid] != nil {
			continue
		}
		found = append(found, pod)
		switch {
		case s.admittedBefore(pod):
			rank[uid] = 0
		case podutil.IsStatic(pod):
			rank[uid] = 1
		default:
			rank[uid] = 2
		}
	}
	slices.SortFunc(found, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank[a.UID], rank[b.UID]), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
	})
	return found
}

// admittedBefore reports whether an earlier run of the agent has admitted the pod. It looks at the runtime and the disk
// of the node: other clients can write the status in the API, and a static pod has no status of its own.
func (s *Supervisor) admittedBefore(pod *corev1.Pod) bool {
	if _, inRuntime := s.listed[pod.UID]; inRuntime {
		return true
	}
	onDisk, err := s.cfg.PodFiles.HasPodDir(pod.UID)
	return onDisk || err != nil
}

// admit decides about a pod that is new to this run of the agent.
func (s *Supervisor) admit(ctx context.Context, e *entry) {
	pod := e.source
	if pod.DeletionTimestamp != nil || finished(pod) || s.admittedBefore(pod) {
		return
	}
	v := s.cfg.Admit(pod, s.others(pod.UID))
	switch {
	case v.Rejection != nil:
		e.retry = podutil.IsStatic(pod)
		s.reject(e, v.Rejection)
	case len(v.Preempt) > 0:
		s.preempt(ctx, e, v)
	default:
		s.reserveDevices(ctx, e)
	}
}

// reject refuses a pod, with an event.
func (s *Supervisor) reject(e *entry, r *podstate.Rejection) {
	e.rejected = r
	s.cfg.Metrics.Rejected(r.Reason)
	s.cfg.Events.PodEvent(e.pod(), "", corev1.EventTypeWarning, r.Reason, r.Message)
}

// begin starts a worker for a pod. It does nothing before it gets its first order.
func (s *Supervisor) begin(ctx context.Context, pod *corev1.Pod) *entry {
	e := &entry{source: pod, worker: newWorker(s.cfg)}
	s.workers[pod.UID] = e
	if eviction := s.cfg.Doomed(pod); eviction != nil {
		e.stop = eviction.stop(pod)
	}
	running, discard := context.WithCancel(ctx)
	e.discard = discard
	s.alive.Go(func() {
		e.worker.run(running)
		discard()
		s.post(func() {
			delete(s.workers, pod.UID)
			delete(s.listed, pod.UID)
			s.reconcile(ctx)
		})
	})
	return e
}

// update records the newest objects of a pod, and sends its worker an order if something is new.
func (s *Supervisor) update(e *entry, pod *corev1.Pod) {
	mirror, _ := s.set.Mirror(pod.UID)
	stop := e.stop.Stricter(stopOf(pod))
	if e.ordered && e.source == pod && e.mirror == mirror && e.stop == stop {
		return
	}
	if e.asking != nil && stop == nil {
		return
	}
	e.stopAsking()
	if e.resources.allocated == nil || e.source != pod {
		s.updateResources(e, pod)
	}
	e.source, e.mirror, e.stop = pod, mirror, stop
	s.send(e)
}

// send sends the worker its newest order.
func (s *Supervisor) send(e *entry) {
	e.ordered = true
	e.worker.inbox.Put(e.order(s.cfg.Node()))
}

// orphan ends a pod that no source knows any more.
func (s *Supervisor) orphan(e *entry) {
	deadline := time.Now().Add(podutil.GracePeriod(e.source))
	stop := e.stop.Stricter(&podstate.Stop{Cause: podstate.StopOrphaned, Deadline: deadline})
	if e.ordered && e.stop == stop {
		return
	}
	e.stopAsking()
	e.stop, e.resources.resizing = stop, false
	s.send(e)
}
