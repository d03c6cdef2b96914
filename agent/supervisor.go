package agent

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods"
)

// relistEvery is how often the runtime is asked about all pods although its events say nothing. Events are hints;
// this is the net below them.
const relistEvery = time.Minute

// relistBlind is how often while the runtime has no event stream.
const relistBlind = time.Second

// Supervisor keeps one worker for each pod that the sources or the runtime know. Its one goroutine owns the set of
// workers; everybody else sends it values.
type Supervisor struct {
	hands *Hands
	log   *slog.Logger
	gates *gates

	sets     mailbox[*pods.Set]
	nudges   chan nudge
	attempts chan probeEvent
	relist   chan []cri.PodSummary
	ended    chan types.UID
	explain  chan chan<- []*Explanation
	// asks are questions that are answered in the loop, between two events.
	asks chan func()
	// began is closed when the loop has begun.
	began chan struct{}
	// known is closed when every source has spoken once.
	known chan struct{}
	// nodeSeen is closed when the Node object is known.
	nodeSeen <-chan struct{}

	workers map[types.UID]*entry
	// set is the newest full set of the sources.
	set *pods.Set
	// again asks for a relist now; gone is closed when the loop has ended.
	again chan struct{}
	gone  chan struct{}
	// listed are the runtime's pods as the last list had them, but for those that have gone since; nil before the first
	// list.
	listed map[types.UID]cri.PodSummary
	// here are the pods that have something on the node, by name, for those who ask from outside; nil: it is not known
	// yet.
	here atomic.Pointer[map[types.NamespacedName][]types.UID]
	// shares carries what burstable pods request, in thousandths of a CPU; shared was put there last.
	shares mailbox[int64]
	shared *int64
	alive  sync.WaitGroup
}

// entry is what the supervisor knows of one worker.
type entry struct {
	worker *worker
	order  Order
	// source and mirror are the objects that order was made from.
	source, mirror *corev1.Pod
	// held is what the pod holds, granted the pod with that in its spec; wants: it wants something else.
	held    *holding
	granted *corev1.Pod
	wants   bool
	// burstable is what the pod counts for in the CPU shares of its class.
	burstable int64
	// asking cancels the rest of the pod's admission: pods that end for it, or device plugins that have not answered.
	// Until that is over its worker has no order. Nil: it is over. awaited is what explain says of it.
	asking  context.CancelFunc
	awaited Wait
	// preempted: the pod ends for a critical one, which already counts in its place.
	preempted bool
	// retry: the pod was refused, and is judged again when something has changed. discard ends its worker for that;
	// nothing of the pod is on the node.
	retry   bool
	discard context.CancelFunc
}

// Order is what a worker is told: what is wanted, and which API object shows its status.
type Order struct {
	plan.Desired
	// Publish is the API object whose status this pod's is: the pod itself, or a static pod's mirror. Nil where there is
	// none.
	Publish *corev1.Pod
}

type nudge struct {
	pod  types.UID
	hint hint
}

// NewSupervisor makes a supervisor that acts through hands.
func NewSupervisor(hands *Hands, log *slog.Logger) *Supervisor {
	return &Supervisor{
		hands: hands, log: log, gates: newGates(),
		sets: newMailbox[*pods.Set](), nudges: make(chan nudge, 128), attempts: make(chan probeEvent, 16), relist: make(chan []cri.PodSummary, 1),
		ended: make(chan types.UID, 16), explain: make(chan chan<- []*Explanation), asks: make(chan func()), began: make(chan struct{}), known: make(chan struct{}),
		set: &pods.Set{}, workers: map[types.UID]*entry{},
		nodeSeen: hands.NodeSeen, again: make(chan struct{}, 1), gone: make(chan struct{}), shares: newMailbox[int64](),
	}
}

// Want takes the newest full set of pods. It has one caller: the merge of the sources.
func (s *Supervisor) Want(set *pods.Set) { s.sets.put(set) }

// RuntimeChanged says that the runtime's view of a pod may have moved.
func (s *Supervisor) RuntimeChanged(pod types.UID) { s.nudge(pod, hintRuntime) }

// ObjectsChanged says that an object which the pod uses has changed.
func (s *Supervisor) ObjectsChanged(pod types.UID) { s.nudge(pod, hintObjects) }

// VerdictChanged says that a probe of the pod has come to another verdict.
func (s *Supervisor) VerdictChanged(pod types.UID) { s.nudge(pod, hintVerdict) }

func (s *Supervisor) nudge(pod types.UID, h hint) {
	select {
	case s.nudges <- nudge{pod, h}:
	case <-s.gone:
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
			if set.Synced && !s.set.Synced {
				s.lookAgain() // what nobody wants can be told only now
				s.knowAll()
			}
			s.set = set
			s.reconcile(ctx)
		case uid := <-s.ended:
			delete(s.workers, uid)
			delete(s.listed, uid)
			s.reconcile(ctx)
		case n := <-s.nudges:
			if e := s.workers[n.pod]; e != nil {
				e.worker.nudge(n.hint)
			}
		case a := <-s.attempts:
			s.tellAttempt(a)
		case all := <-s.relist:
			s.compare(ctx, all)
		case q := <-s.explain:
			q <- s.explanations()
		case ask := <-s.asks:
			ask()
		}
	}
}

// knowAll notes that every source has spoken. A source may fall silent and speak again.
func (s *Supervisor) knowAll() {
	select {
	case <-s.known:
	default:
		close(s.known)
	}
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
			s.tell(e, pod)
		} else {
			s.orphan(e) // its own source took it back: the others, of which one may need the place, are not waited for
		}
	}
	s.resizes()
	s.tellHere()
	s.share()
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

// admittedBefore reports whether an earlier run of the agent has admitted the pod. What is on the node says so: the
// status in the API can be written by others, and a static pod has none of its own.
func (s *Supervisor) admittedBefore(pod *corev1.Pod) bool {
	if _, inRuntime := s.listed[pod.UID]; inRuntime {
		return true
	}
	_, err := os.Lstat(s.hands.Node().PodDir(pod.UID))
	return err == nil
}

// admit decides about a pod that is new to this run of the agent.
func (s *Supervisor) admit(ctx context.Context, e *entry) {
	pod := e.order.Pod
	if pod.DeletionTimestamp != nil || finished(pod) || s.admittedBefore(pod) {
		return
	}
	v := s.hands.Admit(pod, s.others(pod.UID))
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

// reject keeps a pod from running, and tells people.
func (s *Supervisor) reject(e *entry, r *plan.Rejection) {
	e.order.Rejected = r
	s.hands.meter().Rejected(r.Reason)
	s.hands.Events.Event(podReference(e.order.Pod, ""), corev1.EventTypeWarning, r.Reason, r.Message)
}

func finished(pod *corev1.Pod) bool {
	return podutil.IsTerminal(pod.Status.Phase)
}

func (s *Supervisor) begin(ctx context.Context, pod *corev1.Pod) *entry {
	e := &entry{order: Order{Desired: plan.Desired{Pod: pod}}}
	uid := pod.UID
	s.workers[uid] = e
	if s.hands.Doomed != nil {
		if eviction := s.hands.Doomed(pod); eviction != nil {
			e.order.Stop = eviction.stop(pod)
		}
	}
	e.worker = newWorker(s.hands, s.gates, s.log)
	running, discard := context.WithCancel(ctx)
	e.discard = discard
	s.alive.Go(func() {
		e.worker.run(running)
		discard()
		select {
		case s.ended <- uid:
		case <-ctx.Done():
		}
	})
	return e
}

// tell gives a worker its newest order, if anything about it is new, and the pod is let in or is to end.
func (s *Supervisor) tell(e *entry, pod *corev1.Pod) {
	mirror, _ := s.set.Mirror(pod.UID)
	stop := e.order.Stop.Stricter(stopOf(pod))
	if e.source == pod && e.mirror == mirror && e.order.Stop == stop {
		return
	}
	if e.asking != nil && stop == nil {
		return
	}
	e.stopAsking()
	if e.source != pod {
		s.grantTo(e, pod)
	}
	e.source, e.mirror = pod, mirror
	e.order.Stop, e.order.Hashes = stop, hashes(pod)
	s.send(e)
}

// send hands a worker its order, with the pod as it was granted.
func (s *Supervisor) send(e *entry) {
	e.burstable = burstableCPU(e.granted)
	e.order.Pod, e.order.Publish = e.granted, e.source
	if podutil.IsStatic(e.source) {
		e.order.Pod, e.order.Publish = withStatus(e.granted, e.mirror), e.mirror
	}
	e.worker.inbox.put(e.order)
}

// withStatus is a static pod as its mirror shows it.
func withStatus(pod, mirror *corev1.Pod) *corev1.Pod {
	if mirror == nil {
		return pod
	}
	shown := *pod
	shown.Status = mirror.Status
	if finished(mirror) {
		// The node ended it, as when it went down: a static pod comes again. What its containers came to stays.
		shown.Status.Phase, shown.Status.Reason, shown.Status.Message = "", "", ""
	}
	return &shown
}

// orphan ends a pod that no source knows any more.
func (s *Supervisor) orphan(e *entry) {
	stop := e.order.Stop.Stricter(&plan.Stop{Cause: plan.StopOrphaned, Deadline: time.Now().Add(podutil.GracePeriod(e.order.Pod))})
	if e.order.Stop == stop {
		return
	}
	e.stopAsking()
	e.order.Stop, e.order.Publish, e.wants = stop, nil, false
	e.worker.inbox.put(e.order)
}

// stopOf is the stop that the object itself asks for. The deadline counts from when the agent first sees the wish; a
// later, shorter grace brings it nearer.
func stopOf(pod *corev1.Pod) *plan.Stop {
	if pod.DeletionTimestamp == nil {
		return nil
	}
	return &plan.Stop{Cause: plan.StopDeleted, Deadline: time.Now().Add(podutil.GracePeriod(pod))}
}

// hashes are the hashes of the pod's container specs.
func hashes(pod *corev1.Pod) map[string]string {
	all := make(map[string]string, len(pod.Spec.Containers))
	for _, c := range podutil.Containers(&pod.Spec) {
		all[c.Name] = spec.ContainerHash(c)
	}
	return all
}
