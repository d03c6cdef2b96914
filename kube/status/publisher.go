// Package status publishes what happens to pods: their status, their final deletion, and events about them.
//
// It owns the newest status wanted for each pod, the status that the API server is known to have, and the queue between
// the two. It never decides what a status says (agent/podstatus does) and never reads a pod before it writes one: a
// patch is made against the last known status, which the watch and the answers to earlier patches keep up to date. It
// reads a pod only to learn what a conflict or a 404 means. agent calls Set for each pod whose status may have changed,
// and PodEvent for what users should see. Nothing is kept on disk: after a crash the agent observes its pods and calls
// Set again. A status that the server has already costs no request.
package status

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/internal/latest"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/watch"
)

const (
	defaultParallel = 8
	// The back-off of a pod whose requests are refused, and that of errors that may be over at any time.
	podRetryFirst, podRetryMax = time.Second, 30 * time.Second
	outageFirst, outageMax     = 200 * time.Millisecond, 10 * time.Second
	askedMax                   = time.Minute // the longest Retry-After that counts: a proxy may have sent it
)

// Hold is how long a change of a status waits for further changes; see Config. A pod that a slow runtime starts in less
// than this costs one request as well.
const Hold = time.Second

// Config says how a Publisher reaches the API server and what it reports to its caller.
type Config struct {
	// Client speaks to /api/v1 (kube/client's Core).
	Client rest.Interface
	// Log receives a line for a failed request and for a status that would take back a final state.
	Log *slog.Logger
	// Parallel bounds the requests in flight; 0 means defaultParallel. A pod never has two.
	Parallel int
	// Hold is how long a change waits that concerns neither readiness nor the end of the pod, so that the next changes are
	// sent with it: a pod that starts or ends quickly then costs one request. 0 means no wait.
	Hold time.Duration
	// Published is called after each accepted patch with the pod as the API server returned it and the time from the
	// first Set that asked for the change. It is called without locks held, from several goroutines, and must not
	// block.
	Published func(pod *corev1.Pod, took time.Duration)
}

// Publisher brings pod statuses to the API server: newest wins, one request a pod at a time, several pods in parallel,
// changes of readiness and terminal states first. Safe for concurrent use. Set only remembers; Run does the work.
type Publisher struct {
	cfg  Config
	wake latest.Signal

	mu       sync.Mutex
	pods     map[types.UID]*entry
	queues   [3][]*entry // by priority
	delayed  map[*entry]struct{}
	inFlight int
	failures int       // pods whose requests failed since the last request that reached a working API server
	failing  time.Time // when the first of them failed
	resume   time.Time // no request before this after a failure
}

type priority int8

const (
	urgent priority = iota
	normal
	behind // only as a place
	none
)

// target is the pod of an entry; it never changes.
type target struct {
	uid             types.UID
	namespace, name string
	node            string // spec.nodeName
}

// entry is the known and the wanted status of one pod. It is in one of these states:
//
//	idle     queued is none and want is nil: nothing is to be sent.
//	held     in delayed, held: it waits for more changes until notBefore.
//	waiting  in delayed, not held: it waits after a failed request until notBefore.
//	ready    in the queue of its place, and not in delayed.
//	sending  a request is in flight. If Set was called since, queued is the priority of that change.
//
// The queues may have it more than once, and in other states: pop skips it if it is not ready, or has another place.
type entry struct {
	target

	base    corev1.PodStatus // last known at the server
	version string           // its resource version
	deleted bool             // it has a deletionTimestamp
	shown   string           // the resource version of the pod in the newest Set
	want    *corev1.PodStatus
	since   time.Time // of the oldest Set that no request contains yet
	gen     uint64    // counts changes of want and gone
	gone    bool
	sending bool
	sent    time.Time // when the newest request began
	said    string    // the problems of the newest Set, as they were logged

	queued    priority
	fails     bool // a request failed or took too long since the last success, and no outage was the cause
	slow      bool // the last request took too long
	retry     time.Duration
	notBefore time.Time
	held      bool // notBefore comes from Config.Hold, not from an error
}

// levelOf returns the level with which an error is logged. An outage concerns all pods, and it may be long, as requests
// that are too slow may be: only the beginning is a warning.
func (p *Publisher) levelOf(e *entry, err error) slog.Level {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isOutage(err) && p.failures > 0 || e.slow && isSlow(err) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// None is the publisher of a node without an API server, where no statuses are read.
type None struct{}

// Set does nothing.
func (None) Set(*corev1.Pod, corev1.PodStatus) {}

// SetGone does nothing.
func (None) SetGone(*corev1.Pod, corev1.PodStatus) {}

// Forget does nothing.
func (None) Forget(types.UID) {}

// Unsent reports whether something is to be sent: never.
func (None) Unsent() bool { return false }

// New returns a Publisher that sends nothing before Run.
func New(cfg Config) *Publisher {
	if cfg.Parallel <= 0 {
		cfg.Parallel = defaultParallel
	}
	return &Publisher{
		cfg: cfg, wake: latest.NewSignal(),
		pods: map[types.UID]*entry{}, delayed: map[*entry]struct{}{},
	}
}

// Set replaces the status wanted for pod. pod has the identity (namespace, name, UID), what the API server is last
// known to have (status and resource version), and the spec, which determines which containers may restart; for a
// static pod pass its mirror pod. Only what a node agent owns is ever sent: conditions of other owners, claim statuses
// and the nominated node stay as they are. Neither argument may be changed after the call. Set never blocks on the
// network, and a status that equals the known one costs no request.
func (p *Publisher) Set(pod *corev1.Pod, status corev1.PodStatus) { p.set(pod, status, false) }

// SetGone is Set for a pod of which nothing is left on the node. Its status is terminal: Jobs and endpoints must see
// that before the pod disappears. After it is published, the pod is deleted from the API server with a grace period of
// 0 and its UID as precondition, unless the API server has it without a deletionTimestamp, because its etcd was
// restored from a backup: then, and for a mirror pod, it is the same as Set.
func (p *Publisher) SetGone(pod *corev1.Pod, status corev1.PodStatus) { p.set(pod, status, true) }

func (p *Publisher) set(pod *corev1.Pod, status corev1.PodStatus, gone bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entryOf(pod)
	if watch.Older(pod.ResourceVersion, e.shown) { // etcd was restored from a backup: what the server had counts no more
		e.version = ""
	}
	e.shown = pod.ResourceVersion
	e.see(pod)
	last := &e.base
	if e.want != nil {
		last = e.want
	}
	settled, problems := Settle(pod, last, status)
	p.contradicted(e, problems)
	e.gone = (gone || e.gone) && e.deleted && !podutil.IsMirror(pod)
	l := priorityOf(e.gone, pod, last, &settled)
	e.want = &settled
	e.gen++
	if !e.gone && !e.sending && unchanged(&e.base, e.want) {
		p.settleDown(e)
		return
	}
	if e.since.IsZero() {
		e.since = now
	}
	p.enqueue(e, l, now)
}

// contradicted logs what Settle had to keep. That can be the same for hours, and is logged once.
func (p *Publisher) contradicted(e *entry, problems []error) {
	said := fmt.Sprint(problems)
	if said == e.said {
		return
	}
	e.said = said
	for _, problem := range problems {
		p.cfg.Log.Error("new pod status contradicts the published one, keeping the published one",
			"pod", e.namespace+"/"+e.name, "podUID", e.uid, "err", problem)
	}
}

// priorityOf returns how urgent the change from last to next is. Controllers wait for readiness and for the end; those
// that use readiness ignore a pod that is being deleted anyway. A restart of all containers must be seen, and could be
// over before a held change is sent.
func priorityOf(gone bool, pod *corev1.Pod, last, next *corev1.PodStatus) priority {
	turns := isReady(last) != isReady(next) || podutil.IsTerminal(last.Phase) != podutil.IsTerminal(next.Phase)
	resets := !podutil.IsTrue(last, corev1.AllContainersRestarting) && podutil.IsTrue(next, corev1.AllContainersRestarting)
	if gone || resets || (turns && pod.DeletionTimestamp == nil) {
		return urgent
	}
	return normal
}

// Forget drops the known status of a pod, and what is not yet sent. Call it when another client has deleted the pod
// from the API server.
func (p *Publisher) Forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, ok := p.pods[uid]; ok {
		p.drop(e)
	}
}

// Run sends until ctx ends, then waits for the requests in flight, which end with ctx. What was not sent remains
// queued.
func (p *Publisher) Run(ctx context.Context) {
	var senders sync.WaitGroup
	defer senders.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := p.dispatch(ctx, &senders)
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
	}
}

func (p *Publisher) entryOf(pod *corev1.Pod) *entry {
	e, ok := p.pods[pod.UID]
	if !ok {
		e = &entry{
			target:  target{pod.UID, pod.Namespace, pod.Name, pod.Spec.NodeName},
			base:    pod.Status,
			version: pod.ResourceVersion,
			queued:  none,
		}
		p.pods[pod.UID] = e
	}
	return e
}

// see takes over the status in pod, and whether it is to be deleted, unless it is older than what is known. It also
// replaces an equal status, so that the older copy can be freed.
func (e *entry) see(pod *corev1.Pod) {
	if !watch.Older(pod.ResourceVersion, e.version) {
		e.base, e.version = pod.Status, pod.ResourceVersion
		e.deleted = pod.DeletionTimestamp != nil
		e.gone = e.gone && e.deleted
	}
}

func (p *Publisher) drop(e *entry) {
	e.gone = false
	e.gen++
	delete(p.pods, e.uid)
	p.settleDown(e)
}

// settleDown removes e from all lists: nothing is to be sent.
func (p *Publisher) settleDown(e *entry) {
	e.want = nil
	e.queued, e.since = none, time.Time{}
	delete(p.delayed, e)
}
