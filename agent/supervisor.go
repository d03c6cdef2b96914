package agent

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/allocation"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/kube/pods"
)

// Supervisor keeps one worker for each pod that the sources or the runtime know. One goroutine, its loop, owns the
// set of workers; other goroutines send it the newest set of pods and functions to call. Its parts do the work of the
// loop; the Supervisor says in which order.
type Supervisor struct {
	cfg  *Config
	loop *loop
	// sets brings the newest set of pods.
	sets latest.Value[*pods.Set]
	// moved is set when the addresses of the node have changed, ready when the runtime and its network become ready.
	moved, ready latest.Signal
	// known is closed when the pods of the node are known; see AwaitPods.
	known chan struct{}

	table      *table
	dispatcher *dispatcher
	relister   *relister
	orphans    *orphans
	shares     *shareKeeper
	presence   *presence
	running    sync.WaitGroup
}

// NewSupervisor makes a supervisor.
func NewSupervisor(c Config) *Supervisor {
	cfg := c.complete()
	s := &Supervisor{
		cfg:      cfg,
		loop:     newLoop(cfg.Waiting),
		sets:     latest.NewValue[*pods.Set](),
		moved:    latest.NewSignal(),
		ready:    latest.NewSignal(),
		known:    make(chan struct{}),
		table:    newTable(cfg.PodFiles),
		relister: newRelister(cfg.Runtime, cfg.Metrics, cfg.Log),
		shares:   newShareKeeper(cfg.Cgroups, cfg.Log),
		presence: &presence{changed: cfg.PodGone},
	}
	s.dispatcher = &dispatcher{
		cfg:         cfg,
		loop:        s.loop,
		table:       s.table,
		allocations: allocation.NewStore(cfg.PodFiles, cfg.AllocatedPods, s.table.gone, cfg.Log),
		running:     &s.running,
		reconcile:   s.reconcile,
	}
	s.orphans = &orphans{dispatcher: s.dispatcher}
	return s
}

// Want takes the newest full set of pods. It has one caller: the merge of the sources.
func (s *Supervisor) Want(set *pods.Set) { s.sets.Put(set) }

// ObjectsChanged notifies the workers of pods that an object that they use has changed.
func (s *Supervisor) ObjectsChanged(pods []types.UID) { s.notify(hintObjects, pods...) }

// ProbeChanged notifies the pod's worker that a probe has another result.
func (s *Supervisor) ProbeChanged(pod types.UID) { s.notify(hintOther, pod) }

// HealthChanged notifies the workers of pods that the health of one of their devices may have changed.
func (s *Supervisor) HealthChanged(pods []types.UID) { s.notify(hintOther, pods...) }

// NodeMoved notifies the workers of all pods that the addresses of the node have changed: the statuses show them. It
// does not block.
func (s *Supervisor) NodeMoved() { s.moved.Set() }

// RuntimeReady notifies the workers of all pods that the runtime and its network have become ready: what has failed
// because they were not is tried again at once. It does not block.
func (s *Supervisor) RuntimeReady() { s.ready.Set() }

// ProbeFailed records an event about a container: a probe has failed, or cannot be run.
func (s *Supervisor) ProbeFailed(pod types.UID, container, reason, message string) {
	s.post(pod, func(e *entry) {
		s.cfg.Events.PodEvent(e.source, container, corev1.EventTypeWarning, reason, message)
	})
}

// InstanceEnded makes the pod's worker ask the runtime for an instance that may have ended.
func (s *Supervisor) InstanceEnded(pod types.UID, i cri.Instance) {
	s.post(pod, func(e *entry) { e.worker.notifyEnd(i) })
}

func (s *Supervisor) notify(h hint, pods ...types.UID) {
	for _, pod := range pods {
		s.post(pod, func(e *entry) { e.worker.notify(h) })
	}
}

// post makes the loop call f with a pod that has a worker.
func (s *Supervisor) post(pod types.UID, f func(*entry)) {
	s.loop.post(func() {
		if e := s.table.workers[pod]; e != nil {
			f(e)
		}
	})
}

func (s *Supervisor) notifyAll(h hint) {
	for _, e := range s.table.workers {
		e.worker.notify(h)
	}
}

// Run works until ctx ends and all workers have returned. Pods keep running.
func (s *Supervisor) Run(ctx context.Context) {
	defer s.running.Wait()
	defer close(s.loop.gone)
	close(s.loop.began)
	go s.relister.run(ctx, s.InstanceEnded, func(all []cri.PodSummary) {
		s.cfg.RuntimeListed()
		s.loop.post(func() { s.compare(ctx, all) })
	})
	s.running.Go(func() { s.shares.run(ctx) })
	s.running.Go(func() {
		watchClock(ctx, s.cfg.Clock, func() { s.loop.post(func() { s.notifyAll(hintObjects) }) })
	})
	nodeSeen := s.cfg.NodeSeen
	for {
		select {
		case <-ctx.Done():
			return
		case <-nodeSeen:
			nodeSeen = nil
			s.reconcile(ctx) // pods of the API server have waited for this
		case set := <-s.sets:
			s.take(ctx, set)
		case <-s.moved:
			s.notifyAll(hintOther)
		case <-s.ready:
			s.notifyAll(hintReady)
		case call := <-s.loop.calls:
			call()
		}
	}
}

// take makes set the newest one.
func (s *Supervisor) take(ctx context.Context, set *pods.Set) {
	if set.Synced && !s.table.set.Synced {
		s.relister.now.Set() // orphans can be recognized only now
	}
	before := s.table.set
	s.table.set = set
	s.reconcile(ctx)
	notifyWatchers(s.cfg.Watchers, before, set)
}

// notifyWatchers tells watchers which pods the newest set has and the one before had not, and the other way round.
func notifyWatchers(w Watchers, before, now *pods.Set) {
	for uid := range before.Pods {
		if _, ok := now.Pods[uid]; !ok {
			w.Changed(uid)
		}
	}
	for uid := range now.Pods {
		if _, ok := before.Pods[uid]; !ok {
			w.Changed(uid)
		}
	}
	if now.Synced {
		w.Synced()
	}
}

// reconcile brings the workers in line with the newest set.
func (s *Supervisor) reconcile(ctx context.Context) {
	s.orphans.adoptListed(ctx)
	s.orphans.adoptLogs(ctx)
	s.dispatcher.discardFitting()
	s.dispatcher.admitPending(ctx)
	for uid, e := range s.table.workers {
		if pod, wanted := s.table.set.Pods[uid]; wanted {
			s.dispatcher.update(e, pod)
		} else {
			s.dispatcher.orphan(e) // its own source has removed it; the other sources need not have synced
		}
	}
	s.dispatcher.evaluateResizes()
	s.publish()
	if s.table.complete() && !latest.Closed(s.known) {
		close(s.known) // a source that fails later changes nothing
	}
}

// publish passes on what follows from the workers. Before the runtime's first list no pod has a worker, and nothing
// follows from that. The classes keep what the last run of the agent has set until all pods that run have theirs.
func (s *Supervisor) publish() {
	if s.table.listed != nil {
		s.presence.set(s.table.present())
	}
	if s.table.demandKnown() {
		s.shares.set(s.table.demand())
	}
}

// compare notifies the workers of pods that the runtime lists in another state than they know. It starts workers that
// end the pods which must not run.
func (s *Supervisor) compare(ctx context.Context, all []cri.PodSummary) {
	before := s.table.listed
	s.table.listed = make(map[types.UID]cri.PodSummary, len(all))
	for _, pod := range all {
		if s.table.workers[pod.UID] != nil {
			pod.Instances = nil // its worker knows them
		}
		s.table.listed[pod.UID] = pod
	}
	for uid, e := range s.table.workers {
		if !e.knows(s.table.listed[uid].Fingerprint) {
			e.worker.notify(hintRuntime)
		}
	}
	s.dispatcher.retry() // something may have changed without an event
	if before == nil {
		s.reconcile(ctx) // all pods have waited for this
	}
	s.orphans.adoptListed(ctx)
	s.orphans.adoptFromDisk(ctx)
	s.presence.set(s.table.present())
}

// Alive returns an error if the supervisor's loop does not answer before ctx ends. Before the loop has begun it
// returns nil.
func (s *Supervisor) Alive(ctx context.Context) error { return s.loop.answers(ctx) }

// healthLimit bounds how long Health waits.
const healthLimit = 5 * time.Second

// Health is Alive for a caller without a context, such as the check syncloop of /healthz.
func (s *Supervisor) Health() error {
	ctx, cancel := context.WithTimeout(context.Background(), healthLimit)
	defer cancel()
	return s.Alive(ctx)
}
